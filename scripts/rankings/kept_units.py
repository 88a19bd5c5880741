"""Records of finished units: a line each, in one file per kind, kept for good.

Lines are added whole, under a lock. A line that a lost machine left unfinished is passed over, and
of two records of a unit the first counts. So files of several machines may be put together.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.rankings.unit_keys import Unit, key_of


class KeptUnits:
    """The records in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._read: dict[str, tuple[int, dict[str, dict[str, Any]]]] = {}

    def find(self, unit: Unit) -> dict[str, Any] | None:
        """The result of a unit, if it is kept."""
        found = self.read(unit["kind"]).get(key_of(unit))
        return None if found is None else dict(found["result"])

    def read(self, kind: str) -> dict[str, dict[str, Any]]:
        """All records of a kind by their keys."""
        path = self._path(kind)
        size = path.stat().st_size if path.is_file() else 0
        if kind in self._read and self._read[kind][0] == size:
            return self._read[kind][1]  # lines are only ever added
        found: dict[str, dict[str, Any]] = {}
        for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record["key"] != key_of(record["unit"]):
                raise ValueError(f"{path}: record {record['key']} has a unit of another key")
            found.setdefault(record["key"], record)
        self._read[kind] = (size, found)
        return found

    def keep(self, unit: Unit, result: Mapping[str, Any], made: Mapping[str, Any]) -> None:
        """Add a record; nothing where there is one."""
        self.directory.mkdir(parents=True, exist_ok=True)
        record = {"key": key_of(unit), "unit": unit, "result": result, "made": made}
        with self._path(unit["kind"]).open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if self.find(unit) is not None:
                return
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                file.write(b"\n")
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def alone_at_work(self) -> Iterator[None]:
        """Nobody else may add to this directory meanwhile, or units would be done twice."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.exit(f"{self.directory}: another bench_ranking.py is at work here")
            yield

    def _path(self, kind: str) -> Path:
        return self.directory / f"{kind}.jsonl"

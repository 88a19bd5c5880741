"""Lines of JSON that last a million steps: all but the newest are in columns beside them.

    losses.jsonl     the newest lines, to read and to follow
    losses.msgpack   every line before them, as tables of 1024 rows

A line is in its file as soon as it is known. When there are twice as many, the older half becomes
a table, which is on disk before the lines go. So no moment leaves a row in neither. One that leaves
rows in both is told by its first row.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from naspipe.config.errors import LogError
from naspipe.config.text import parse_json
from naspipe.trace.storage.framing import MAX_PAYLOAD_BYTES, FramedWriter, read_frames
from naspipe.trace.storage.tables import decode_table, encode_table
from naspipe.trace.storage.whole_files import atomic_file
from naspipe.trace.storage.writing import write_whole, writing

ROLLED = 1024
MAGIC = b"NPTABLES"
VERSION = 1

Row = Mapping[str, Any]


def tables_of(path: Path) -> Path:
    """Where the rows before a file's lines are."""
    return path.with_suffix(".msgpack")


class RolledLines:
    """Appends rows, each handed to the operating system at once.

    Args:
        path: of the lines.
        keeps: whether a row that is there stays; None to begin anew.

    Raises:
        OSError: when a file cannot be written.
        LogError: when rows that are there cannot be read.
    """

    def __init__(self, path: Path, keeps: Callable[[Row], bool] | None = None) -> None:
        self._path = path
        self._tables: FramedWriter | None = None
        self._newest: list[bytes] = []
        if keeps is None:
            tables_of(path).unlink(missing_ok=True)
            self._file = path.open("wb", buffering=0)
            return
        newest = [row for _, row in _newest(path, _last_rows(path))]
        self._newest = [line_of(row) for row in newest if keeps(row)]
        _cut_tables(tables_of(path), keeps)
        self._replace()

    def append(self, row: Row) -> None:
        """Add one row."""
        line = line_of(row)
        with writing(self._path, len(line)):
            write_whole(self._file, line)
        self._newest.append(line)
        if len(self._newest) >= 2 * ROLLED:
            self._roll()

    def sync(self) -> None:
        """Put every row on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        self._file.close()
        if self._tables is not None:
            self._tables.close()

    def _roll(self) -> None:
        if self._tables is None:
            self._tables = FramedWriter(tables_of(self._path), MAGIC, VERSION)
        older, self._newest = self._newest[:ROLLED], self._newest[ROLLED:]
        _append(self._tables, [parse_json(line) for line in older])
        os.fsync(self._tables.fileno())
        self._file.close()
        self._replace()

    def _replace(self) -> None:
        with atomic_file(self._path) as file:
            file.write(b"".join(self._newest))
        self._file = self._path.open("ab", buffering=0)


def line_of(row: Row) -> bytes:
    """A row as its line."""
    return json.dumps(row, allow_nan=False).encode() + b"\n"


class Place(NamedTuple):
    """Where a row stands."""

    path: Path
    number: int
    row: int = -1
    """Of a table; a line has none."""

    def __str__(self) -> str:
        if self.row < 0:
            return f"{self.path}:{self.number}"
        return f"{self.path}, table {self.number}, row {self.row}"


def read_rows(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Every row and where it stands, in order; a torn last line is dropped.

    A line that is no JSON is handed over as a row without fields, for the caller to judge.

    Raises:
        LogError: when a table is damaged.
        OSError: when there are no lines.
    """
    last: deque[Row] = deque(maxlen=ROLLED)
    tables = tables_of(path)
    for number, rows in enumerate(_tables(tables)):
        for place, row in enumerate(rows):
            yield Place(tables, number, place), row
        last.extend(rows)
    yield from _newest(path, last)


def _last_rows(path: Path) -> deque[Row]:
    """The last ones that are in tables."""
    last: deque[Row] = deque(maxlen=ROLLED)
    for rows in _tables(tables_of(path)):
        last.extend(rows)
    return last


def _newest(path: Path, last: Sequence[Row]) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The rows of the lines, without those that are in a table by now.

    A process that died between the two has left the last rows of the tables in the lines, too.
    """
    found = [_parsed(line) for line in path.read_bytes().split(b"\n")[:-1]]
    doubled = next((len(last) - n for n, row in enumerate(last) if found[:1] == [row]), 0)
    for number, row in enumerate(found[doubled:], doubled + 1):
        yield Place(path, number), row


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _append(tables: FramedWriter, rows: Sequence[Row]) -> None:
    """Add rows as one table, or as several where they are long."""
    packed = encode_table(rows)
    if len(packed) > MAX_PAYLOAD_BYTES and len(rows) > 1:
        _append(tables, rows[: len(rows) // 2])
        _append(tables, rows[len(rows) // 2 :])
        return
    tables.append(packed)
    tables.flush()


def _tables(path: Path) -> Iterator[list[dict[str, Any]]]:
    if not path.exists():
        return
    for number, packed in enumerate(read_frames(path, MAGIC, VERSION)):
        try:
            yield decode_table(packed)
        except LogError as error:
            raise LogError(f"{path}, table {number}: {error}") from error


def _cut_tables(path: Path, keeps: Callable[[Row], bool]) -> None:
    """Leave the rows that stay."""
    if not path.exists():
        return
    fresh = path.with_name(f".{path.name}.cut")
    fresh.unlink(missing_ok=True)
    with FramedWriter(fresh, MAGIC, VERSION) as tables:
        for rows in _tables(path):
            if kept := [row for row in rows if keeps(row)]:
                _append(tables, kept)
        os.fsync(tables.fileno())
    fresh.replace(path)

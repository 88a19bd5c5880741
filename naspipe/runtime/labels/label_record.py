"""What a run records of its teachers: who came and went, and what each has done."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from naspipe.label_scheduler.label_table import Counts
from naspipe.trace.results.teacher_events import teacher_events_file
from naspipe.trace.storage.writing import write_whole, writing


class LabelRecord:
    """Appends lines to ``teachers-N.jsonl``: events as they come, and counts at the end.

    Args:
        directory: of the stream.
        number: of the student among those of the run (its group).
        generation: how often the run has gone on.

    Raises:
        StorageError: from every call, when the file cannot be written.
    """

    def __init__(self, directory: Path, number: int, generation: int) -> None:
        path = teacher_events_file(directory, number)
        is_torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
        self._path = path
        with writing(path):
            self._file = path.open("ab", buffering=0)
            write_whole(self._file, b"\n" if is_torn else b"")
        self._write({"event": "begin", "generation": generation})

    def event(self, what: str, teacher: str, **more: Any) -> None:
        """Something happened to a teacher."""
        self._write({"event": what, "teacher": teacher, **more})

    def doubt(self, batch: int) -> None:
        """Labels from this batch on may be wrong: the next life begins before them."""
        self._write({"event": "doubt", "batch": batch})

    def close(
        self, counts: Mapping[str, Counts], audits_missed: int, seconds_missing: float
    ) -> None:
        """Write what each teacher has done in this life, and close the file."""
        for teacher, found in sorted(counts.items()):
            self._write({"event": "counts", "teacher": teacher, **asdict(found)})
        more = {"audits_missed": audits_missed, "seconds_missing": seconds_missing}
        self._write({"event": "end", **more})
        self._file.close()

    def _write(self, values: Mapping[str, Any]) -> None:
        line = {"time_ns": time.monotonic_ns(), **values}
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        with writing(self._path, len(data)):
            write_whole(self._file, data)

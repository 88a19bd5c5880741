"""The access log on disk: one file per stage, written while the run goes on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from naspipe.core.access import Access, AccessKind
from naspipe.core.errors import LogError
from naspipe.core.ids import StreamId
from naspipe.trace.access.records import (
    MAGIC,
    READABLE_VERSIONS,
    SCHEMA_VERSION,
    Recorded,
    decode_access,
    encode_access,
)
from naspipe.trace.storage.framing import FramedWriter, file_version, read_frames

_BUFFERED = 512
_KIND_ORDER = {kind: place for place, kind in enumerate(AccessKind)}


class AccessLogWriter:
    """Appends accesses to one stage's file; a context manager that flushes on its way out.

    A file that exists is continued, its torn tail cut off. ``generation`` counts resumes.
    At most 512 records wait in memory; call :meth:`flush` where a checkpoint relies on them.
    """

    def __init__(self, path: Path, generation: int = 0) -> None:
        self._generation = generation
        self._waiting: list[Access] = []
        self._frames = FramedWriter(path, MAGIC, SCHEMA_VERSION)

    def append(self, access: Access) -> None:
        """Add one record; the file sees it at the next flush."""
        self._waiting.append(access)
        if len(self._waiting) >= _BUFFERED:
            self.flush()

    def flush(self) -> None:
        """Hand every record to the operating system."""
        append, generation = self._frames.append, self._generation
        for access in self._waiting:
            append(encode_access(access, generation))
        self._waiting.clear()
        self._frames.flush()

    def fileno(self) -> int:
        """The open file's descriptor."""
        return self._frames.fileno()

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        try:
            self.flush()
        finally:
            self._frames.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Life(NamedTuple):
    """When one generation of a run was, on the clock on which all are laid end to end."""

    generation: int
    start_ns: int
    end_ns: int
    """Of what the result rests on: what was done again later has no time."""
    shift_ns: int

    def place(self, time_ns: int) -> int:
        """Where a time of its own clock is, at most at its edges."""
        return min(max(time_ns + self.shift_ns, self.start_ns), self.end_ns)


def read_access_log(path: Path) -> list[Access]:
    """Every record of one file, in the order written; a torn tail is dropped.

    Raises:
        LogError: when the file is damaged before its tail.
    """
    return [recorded.access for recorded in _read(path)]


def read_run_accesses(run_directory: Path) -> list[Access]:
    """Every access that the run's result rests on, over all stages, in order of time.

    After a resume, the records of the subnets that were done again count once, as done
    last; the generations are laid end to end, so that times rise across a resume. Ties of
    start time go by end time, kind, stream, sequence ID and block.
    """
    return read_joint_accesses([run_directory])[0]


def read_joint_accesses(run_directories: Sequence[Path]) -> list[list[Access]]:
    """The same of several runs that shared a pipeline, on one clock."""
    return read_joint_lives(run_directories)[0]


def read_joint_lives(run_directories: Sequence[Path]) -> tuple[list[list[Access]], list[Life]]:
    """The same, and when each generation was, to place what others recorded of it."""
    found = []
    for directory in run_directories:
        by_generation: dict[int, list[Access]] = defaultdict(list)
        for path in sorted((Path(directory) / "access").glob("stage-*.msgpack")):
            for generation, access in _read(path):
                by_generation[generation].append(access)
        found.append(_without_redone(by_generation))
    return _laid_end_to_end(found)


def time_key(access: Access) -> tuple[int, ...]:
    """Sort key by time, complete: see :func:`read_run_accesses`."""
    stream, block, candidate = access.layer
    return (
        access.start_ns,
        access.end_ns,
        _KIND_ORDER[access.kind],
        stream,
        access.sequence_id,
        block,
        candidate,
    )


def _read(path: Path) -> Iterator[Recorded]:
    version = file_version(path, READABLE_VERSIONS)
    for number, payload in enumerate(read_frames(path, MAGIC, version)):
        try:
            yield decode_access(payload, version)
        except LogError as error:
            raise LogError(f"{path}, record {number}: {error}") from error


def _without_redone(by_generation: dict[int, list[Access]]) -> dict[int, list[Access]]:
    """Drop what a later generation did again: all subnets from its first one onwards."""
    kept: dict[int, list[Access]] = {}
    redone_from: dict[StreamId, int] = {}
    for generation in sorted(by_generation, reverse=True):
        accesses = by_generation[generation]
        if redone_from:
            limits = redone_from
            accesses = [
                access
                for access in accesses
                if access.sequence_id < limits.get(access.layer.stream, access.sequence_id + 1)
            ]
        kept[generation] = accesses
        redone_from = _first_subnets(accesses, redone_from)
    return kept


def _first_subnets(accesses: Iterable[Access], known: dict[StreamId, int]) -> dict[StreamId, int]:
    first = dict(known)
    for access in accesses:
        stream, sequence_id = access.layer.stream, access.sequence_id
        if sequence_id < first.get(stream, sequence_id + 1):
            first[stream] = sequence_id
    return first


def _laid_end_to_end(
    runs: Sequence[dict[int, list[Access]]],
) -> tuple[list[list[Access]], list[Life]]:
    """The generations of each run, one after another, at the same time in all runs."""
    lives: list[Life] = []
    results: list[list[Access]] = [[] for _ in runs]
    end = None
    for generation in sorted({each for run in runs for each in run}):
        parts = [run.get(generation, []) for run in runs]
        if not any(parts):
            continue
        start = min(access.start_ns for part in parts for access in part)
        shift = 0 if end is None else end - start
        for result, part in zip(results, parts, strict=True):
            moved = (
                access._replace(start_ns=access.start_ns + shift, end_ns=access.end_ns + shift)
                for access in part
            )
            result.extend(sorted(moved if shift else part, key=time_key))
        end = max(access.end_ns for part in parts for access in part) + shift
        lives.append(Life(generation, start + shift, end, shift))
    return results, lives

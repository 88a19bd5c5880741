"""The access log on disk: one file per stage, written while the run goes on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.trace.access.columns import AccessColumns, joined
from naspipe.trace.access.lives import Firsts, Life, laid_end_to_end, lowest, without_redone
from naspipe.trace.access.segments import MAGIC, SCHEMA_VERSION, Head, encode_segment
from naspipe.trace.access.stored import EVERYTHING, Wanted, iterate_heads, read_columns
from naspipe.trace.access.streaming import parts_in_time
from naspipe.trace.storage.framing import FramedWriter

_BUFFERED = 4096
_LONGEST_NS = 10_000_000_000
_KIND_ORDER = {kind: place for place, kind in enumerate(AccessKind)}


class AccessLogWriter:
    """Appends accesses to one stage's file; a context manager that flushes on its way out.

    A file that exists is continued, its torn tail cut off. ``generation`` counts resumes. What
    waits in memory is written as one segment once there are 4096 records or 10 s between their
    ends; call :meth:`flush` where a checkpoint relies on them.
    """

    def __init__(self, path: Path, generation: int = 0) -> None:
        self._generation = generation
        self._waiting: list[Access] = []
        self._frames = FramedWriter(path, MAGIC, SCHEMA_VERSION)

    def append(self, access: Access) -> None:
        """Add one record; the file sees it at the next flush."""
        waiting = self._waiting
        waiting.append(access)
        if len(waiting) >= _BUFFERED or access.end_ns - waiting[0].end_ns > _LONGEST_NS:
            self.flush()

    def flush(self) -> None:
        """Hand every record to the operating system."""
        if self._waiting:
            self._frames.append(encode_segment(self._waiting, self._generation))
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


def read_access_log(path: Path) -> list[Access]:
    """Every record of one file, in the order written; a torn tail is dropped.

    Raises:
        LogError: when the file is damaged before its tail.
    """
    return [access for _, columns in read_columns(path) for access in columns.accesses()]


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
    columns, lives = read_joint_columns(run_directories)
    return [list(each.accesses()) for each in columns], lives


def read_joint_columns(
    run_directories: Sequence[Path], wanted: Wanted = EVERYTHING
) -> tuple[list[AccessColumns], list[Life]]:
    """The same in columns. Where some are wanted only, lives begin and end with those."""
    logs = [RunLog(directory) for directory in run_directories]
    return laid_end_to_end([log.by_generation(wanted) for log in logs])


def joint_parts(run_directories: Sequence[Path]) -> Iterator[AccessColumns]:
    """Of several runs that shared a pipeline, all streams together; see :meth:`RunLog.parts`."""
    logs = [RunLog(directory) for directory in run_directories]
    return parts_in_time([(log._paths, log.firsts) for log in logs])


class RunLog:
    """The access log of a run: what is in it, and any part of it.

    Raises:
        LogError: when a file is damaged before its tail.
    """

    def __init__(self, run_directory: Path) -> None:
        self._paths = sorted((Path(run_directory) / "access").glob("stage-*.msgpack"))

    @property
    def heads(self) -> Iterator[Head]:
        """What the segments of all stages hold, those of earlier lives included."""
        return (head for path in self._paths for head in iterate_heads(path))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was recorded."""
        return next(self.heads, None) is None

    @cached_property
    def layers(self) -> dict[LayerId, int]:
        """How many records there are of each layer, in chain order."""
        counts: dict[LayerId, int] = defaultdict(int)
        for head in self.heads:
            for stream, block, candidate, count in head.layers.tolist():
                counts[LayerId(stream, block, candidate)] += count
        return dict(sorted(counts.items()))

    @cached_property
    def firsts(self) -> dict[int, Firsts]:
        """Of each generation, the first subnets of its streams."""
        found: dict[int, list[Firsts]] = defaultdict(list)
        for head in self.heads:
            found[head.generation].append({stream: first for stream, first, _ in head.subnets})
        return {generation: lowest(each) for generation, each in sorted(found.items())}

    def parts(self, wanted: Wanted = EVERYTHING) -> Iterator[AccessColumns]:
        """The same as :meth:`columns` gives, some segments at a time: memory does not grow."""
        return parts_in_time([(self._paths, self.firsts)], wanted)

    def by_generation(self, wanted: Wanted = EVERYTHING) -> dict[int, AccessColumns]:
        """What is wanted of what the result rests on."""
        found: dict[int, list[AccessColumns]] = defaultdict(list)
        for path in self._paths:
            for generation, columns in read_columns(path, wanted):
                found[generation].append(columns)
        whole = {generation: joined(parts) for generation, parts in found.items()}
        if wanted == EVERYTHING and len(whole) < 2:
            return whole
        return without_redone(whole, self.firsts)

    def columns(self, wanted: Wanted = EVERYTHING, in_order: bool = True) -> AccessColumns:
        """The same with the generations one behind another; in order of time where that matters."""
        (found,), _ = laid_end_to_end([self.by_generation(wanted)], in_order)
        return found


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

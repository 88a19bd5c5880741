"""The access log on disk: one file per stage, written while the run goes on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.store.access_columns import (
    AccessColumns,
    Firsts,
    Life,
    joined,
    laid_end_to_end,
    lowest,
    without_redone,
)
from naspipe.store.access_segments import (
    EVERYTHING,
    MAGIC,
    SCHEMA_VERSION,
    Head,
    Wanted,
    encode_segment,
    iterate_heads,
    read_columns,
)
from naspipe.store.frames import FramedWriter

_AT_ONCE = 1 << 16
"""Records of all stages that are read before some are handed over."""
_NEVER = np.iinfo(np.int64).max

Source = tuple[Sequence[Path], Mapping[int, Firsts]]
"""A run's files, and of each of its lives the first subnets."""


class _StageLog:
    """One stage's records of one life, and the earliest that may still come.

    Args:
        path: of the file.
        wanted: what is read of it.
        firsts: what a later life did again is left out.
        stream: the number that the records' only stream gets; None where it keeps its own.
    """

    def __init__(
        self, path: Path, wanted: Wanted, firsts: Mapping[int, Firsts], stream: int | None
    ) -> None:
        heads = (head for head in iterate_heads(path) if wanted.has(head))
        starts = np.array([*(head.start_ns for head in heads), _NEVER], np.int64)
        self._earliest = np.minimum.accumulate(starts[::-1])[::-1]
        self._columns = read_columns(path, wanted)
        self._firsts, self._stream = firsts, stream
        self._place = 0

    @property
    def earliest_ns(self) -> int:
        """No record that was not read begins before."""
        return int(self._earliest[self._place])

    def read(self) -> AccessColumns:
        """The records of the next segment."""
        self._place += 1
        found = next(self._columns, None)
        if found is None:  # the last one is torn
            self._place = len(self._earliest) - 1
            return joined(())
        generation, columns = found
        kept = without_redone({generation: columns}, self._firsts)[generation]
        if self._stream is None:
            return kept
        return replace(kept, stream=np.full_like(kept.stream, self._stream))


def parts_in_time(
    sources: Sequence[Source], wanted: Wanted = EVERYTHING
) -> Iterator[AccessColumns]:
    """Parts of a log, one behind another in order of time; the lives are laid end to end.

    Args:
        sources: the runs that shared a pipeline; of several each has one stream, its place here.
        wanted: what is read of them.

    Raises:
        LogError: when what is read is damaged.
    """
    end_ns: int | None = None
    for generation in sorted({each for _, firsts in sources for each in firsts}):
        own = wanted._replace(generation=generation)
        logs = [
            _StageLog(path, own, firsts, number if len(sources) > 1 else None)
            for number, (paths, firsts) in enumerate(sources)
            for path in paths
        ]
        shift: int | None = None
        last_ns = 0
        for part in _in_time(logs):
            if shift is None:
                shift = 0 if end_ns is None else end_ns - int(part.start_ns[0])
            last_ns = max(last_ns, int(part.end_ns.max()) + shift)
            yield part.moved(shift)
        end_ns = end_ns if shift is None else last_ns


def _in_time(logs: Sequence[_StageLog]) -> Iterator[AccessColumns]:
    """Of one life."""
    left = joined(())
    while (earliest := min((log.earliest_ns for log in logs), default=_NEVER)) < _NEVER:
        parts = [left]
        while earliest < _NEVER and sum(map(len, parts)) < len(left) + _AT_ONCE:
            parts.append(min(logs, key=lambda log: log.earliest_ns).read())
            earliest = min(log.earliest_ns for log in logs)
        found = joined(parts)
        is_ready = found.start_ns < earliest
        left = found.take(~is_ready)
        if is_ready.any():
            yield found.take(is_ready).by_time()


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

"""The access log of a run: one file per stage and attempt, written during the run.

A log can be read as a whole, in part (some layers, subnets or kinds), or in order of time with
bounded memory. Records of subnets that a later attempt trained again are always omitted, because
the result does not depend on them. All attempts are placed one after the other on one clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.store.access_columns import (
    AccessColumns,
    Firsts,
    Life,
    joined,
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
"""The number of records of all stages that are read before some are yielded."""
_NEVER = np.iinfo(np.int64).max
_BUFFERED = 4096
_LONGEST_NS = 10_000_000_000
_KIND_ORDER = {kind: place for place, kind in enumerate(AccessKind)}


class AccessLogWriter:
    """Appends accesses to one stage's file; a context manager that flushes on exit.

    An existing file is continued after its last whole record. ``generation`` counts resumes.
    Records are buffered until there are 4096 of them or they span 10 s, and then written as one
    segment. Call :meth:`flush` before a checkpoint relies on them.
    """

    def __init__(self, path: Path, generation: int = 0) -> None:
        self._generation = generation
        self._waiting: list[Access] = []
        self._frames = FramedWriter(path, MAGIC, SCHEMA_VERSION)

    def append(self, access: Access) -> None:
        waiting = self._waiting
        waiting.append(access)
        if len(waiting) >= _BUFFERED or access.end_ns - waiting[0].end_ns > _LONGEST_NS:
            self.flush()

    def flush(self) -> None:
        """Write all buffered records to the file, without an fsync."""
        if self._waiting:
            self._frames.append(encode_segment(self._waiting, self._generation))
            self._waiting.clear()
        self._frames.flush()

    def fileno(self) -> int:
        return self._frames.fileno()

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        try:
            self.flush()
        finally:
            self._frames.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class RunLog:
    """The access log of a run, any part of which can be read.

    Raises:
        LogError: from any method that reads a file which is damaged before its torn tail.
    """

    def __init__(self, run_directory: Path) -> None:
        self._paths = sorted((Path(run_directory) / "access").glob("stage-*.msgpack"))

    @property
    def heads(self) -> Iterator[Head]:
        """Yield the heads of all stages' segments, including those of earlier attempts."""
        return (head for path in self._paths for head in iterate_heads(path))

    @property
    def is_empty(self) -> bool:
        return next(self.heads, None) is None

    @cached_property
    def layers(self) -> dict[LayerId, int]:
        """Number of records of each layer, in chain order."""
        counts: dict[LayerId, int] = defaultdict(int)
        for head in self.heads:
            for stream, block, candidate, count in head.layers.tolist():
                counts[LayerId(stream, block, candidate)] += count
        return dict(sorted(counts.items()))

    @cached_property
    def firsts(self) -> dict[int, Firsts]:
        """The first subnets that each attempt trained, by stream."""
        found: dict[int, list[Firsts]] = defaultdict(list)
        for head in self.heads:
            found[head.generation].append({stream: first for stream, first, _ in head.subnets})
        return {generation: lowest(each) for generation, each in sorted(found.items())}

    def by_generation(self, wanted: Wanted = EVERYTHING) -> dict[int, AccessColumns]:
        """Return the wanted records of each attempt, unordered and on the attempt's own clock."""
        found: dict[int, list[AccessColumns]] = defaultdict(list)
        for path in self._paths:
            for generation, columns in read_columns(path, wanted):
                found[generation].append(columns)
        if wanted == EVERYTHING and len(found) < 2:
            return {generation: joined(parts) for generation, parts in found.items()}
        return {
            generation: without_redone(joined(parts), generation, self.firsts)
            for generation, parts in sorted(found.items())
        }

    def columns(self, wanted: Wanted = EVERYTHING) -> AccessColumns:
        """Return the wanted records in order of time."""
        (found,), _ = _laid_end_to_end([self.by_generation(wanted)])
        return found

    def parts(self, wanted: Wanted = EVERYTHING) -> Iterator[AccessColumns]:
        """Yield the rows of :meth:`columns` in parts, so that memory stays bounded."""
        return _parts_in_time([(self._paths, self.firsts)], wanted)


def _laid_end_to_end(
    runs: Sequence[Mapping[int, AccessColumns]],
) -> tuple[list[AccessColumns], list[Life]]:
    """Join the attempts of each run in order of time; an attempt has one start for all runs."""
    lives: list[Life] = []
    results: list[list[AccessColumns]] = [[] for _ in runs]
    end_ns: int | None = None
    for generation in sorted({each for run in runs for each in run}):
        parts = [run.get(generation, joined(())) for run in runs]
        known = [part for part in parts if len(part)]
        if not known:
            continue
        start_ns = min(int(part.start_ns.min()) for part in known)
        shift_ns = 0 if end_ns is None else end_ns - start_ns
        for result, part in zip(results, parts, strict=True):
            result.append(part.moved(shift_ns).by_time())
        end_ns = max(int(part.end_ns.max()) for part in known) + shift_ns
        lives.append(Life(generation, start_ns + shift_ns, end_ns, shift_ns))
    return [joined(result) for result in results], lives


def read_access_log(path: Path) -> list[Access]:
    """Return every record of one file, in the order written; a torn tail is dropped."""
    return [access for _, columns in read_columns(path) for access in columns.accesses()]


def read_run_accesses(run_directory: Path) -> list[Access]:
    """Return every access that the run's result rests on, over all stages, in order of time.

    Ties of start time are broken by end time, kind, stream, sequence ID and block.
    """
    return read_joint_accesses([run_directory])[0]


def read_joint_accesses(run_directories: Sequence[Path]) -> list[list[Access]]:
    """Return the accesses of several runs that shared a pipeline, on one clock."""
    columns, _ = read_joint_columns(run_directories)
    return [list(each.accesses()) for each in columns]


def read_joint_columns(
    run_directories: Sequence[Path], wanted: Wanted = EVERYTHING
) -> tuple[list[AccessColumns], list[Life]]:
    """Return the wanted columns of each run, and the attempts with their start and end times."""
    return _laid_end_to_end([RunLog(each).by_generation(wanted) for each in run_directories])


def joint_parts(run_directories: Sequence[Path]) -> Iterator[AccessColumns]:
    """Yield all streams of several runs that shared a pipeline together; see :meth:`RunLog.parts`.

    Each run has one stream, whose number is the run's index.
    """
    logs = [RunLog(directory) for directory in run_directories]
    return _parts_in_time([(log._paths, log.firsts) for log in logs], EVERYTHING)


class _StageLog:
    """The records of one attempt in one file, and the earliest start among unread records.

    ``stream`` replaces the number of the records' only stream; None keeps the numbers.
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
        """A lower bound of the start times of all unread records."""
        return int(self._earliest[self._place])

    def read(self) -> AccessColumns:
        """Read the next segment."""
        self._place += 1
        found = next(self._columns, None)
        if found is None:  # the last segment is torn
            self._place = len(self._earliest) - 1
            return joined(())
        generation, columns = found
        kept = without_redone(columns, generation, self._firsts)
        if self._stream is None:
            return kept
        return replace(kept, stream=np.full_like(kept.stream, self._stream))


def _parts_in_time(
    sources: Sequence[tuple[Sequence[Path], Mapping[int, Firsts]]], wanted: Wanted
) -> Iterator[AccessColumns]:
    """Yield parts of a log in order of time, with attempts one after the other.

    Args:
        sources: for each run, its files and the first subnets of each attempt.
        wanted: which records to read.
    """
    end_ns: int | None = None
    for generation in sorted({each for _, firsts in sources for each in firsts}):
        own = wanted._replace(generation=generation)
        logs = [
            _StageLog(path, own, firsts, number if len(sources) > 1 else None)
            for number, (paths, firsts) in enumerate(sources)
            for path in paths
        ]
        shift_ns: int | None = None
        last_ns = 0
        left = joined(())
        while (earliest := min((log.earliest_ns for log in logs), default=_NEVER)) < _NEVER:
            parts = [left]
            while earliest < _NEVER and sum(map(len, parts)) < len(left) + _AT_ONCE:
                parts.append(min(logs, key=lambda log: log.earliest_ns).read())
                earliest = min(log.earliest_ns for log in logs)
            found = joined(parts)
            is_ready = found.start_ns < earliest
            left = found.take(~is_ready)
            if not is_ready.any():
                continue
            part = found.take(is_ready).by_time()
            if shift_ns is None:
                shift_ns = 0 if end_ns is None else end_ns - int(part.start_ns[0])
            last_ns = max(last_ns, int(part.end_ns.max()) + shift_ns)
            yield part.moved(shift_ns)
        end_ns = end_ns if shift_ns is None else last_ns


def time_key(access: Access) -> tuple[int, ...]:
    """Return a complete sort key by time; see :func:`read_run_accesses`."""
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

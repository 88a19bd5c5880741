"""A log from its begin to its end, some segments at a time: what is held does not grow with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from naspipe.trace.access.columns import AccessColumns, joined
from naspipe.trace.access.lives import Firsts, without_redone
from naspipe.trace.access.stored import EVERYTHING, Wanted, iterate_heads, read_columns

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

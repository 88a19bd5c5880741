"""The lives of a run in its logs: what was done again counts once, and times go on rising."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from naspipe.trace.access.columns import AccessColumns, joined

Firsts = Mapping[int, int]
"""By stream, its first sequence ID."""


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


def lowest(firsts: Iterable[Firsts]) -> Firsts:
    """Of each stream, the least of all."""
    found: dict[int, int] = {}
    for each in firsts:
        for stream, first in each.items():
            found[stream] = min(first, found.get(stream, first))
    return found


def without_redone(
    by_generation: Mapping[int, AccessColumns], firsts: Mapping[int, Firsts]
) -> dict[int, AccessColumns]:
    """Drop what a later generation did again: all subnets from its first one onwards.

    Args:
        by_generation: records, all or some.
        firsts: of each generation, of all its records.
    """
    kept = {}
    for generation, columns in sorted(by_generation.items()):
        limits = lowest(own for later, own in sorted(firsts.items()) if later > generation)
        redone = np.zeros(len(columns), np.bool_)
        for stream, first in limits.items():
            redone |= (columns.stream == stream) & (columns.sequence_id >= first)
        kept[generation] = columns.take(~redone) if redone.any() else columns
    return kept


def laid_end_to_end(
    runs: Sequence[Mapping[int, AccessColumns]], in_order: bool = True
) -> tuple[list[AccessColumns], list[Life]]:
    """The generations of each run, one after another, at the same time in all runs.

    Each is in order of time then, unless nobody needs it to be.
    """
    lives: list[Life] = []
    results: list[list[AccessColumns]] = [[] for _ in runs]
    end = None
    for generation in sorted({each for run in runs for each in run}):
        parts = [run[generation] if generation in run else joined(()) for run in runs]
        known = [part for part in parts if len(part)]
        if not known:
            continue
        start = min(int(part.start_ns.min()) for part in known)
        shift = 0 if end is None else end - start
        for result, part in zip(results, parts, strict=True):
            moved = part.moved(shift)
            result.append(moved.by_time() if in_order else moved)
        end = max(int(part.end_ns.max()) for part in known) + shift
        lives.append(Life(generation, start + shift, end, shift))
    return [joined(result) for result in results], lives

"""Runs too long to show every record: which steps a page shows in full, and the numbers of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from naspipe.config.errors import ConfigError
from naspipe.trace.access.log import RunLog
from naspipe.trace.access.stored import Wanted
from naspipe.trace.reading.long_metrics import summarize_parts
from naspipe.trace.reading.metrics import Summary
from naspipe.trace.results.losses_file import Loss

SHOWN_RECORDS = 20_000
"""A page shows so many in full, unless it is asked for certain steps."""
SHOWN_LOSSES = 4_000
"""Points of the curve of losses, at most."""


class Asked(NamedTuple):
    """Steps that a reader asks for; all, or as many as can be shown, where nothing is said."""

    first: int | None = None
    last: int | None = None

    def __bool__(self) -> bool:
        return self.first is not None or self.last is not None


class Stretch(NamedTuple):
    """Steps that are shown in full."""

    first: int
    last: int
    """The last one is in."""

    def wanted(self, passes: int) -> Wanted:
        """What to read of a log, with so many passes in a step."""
        return Wanted(first=self.first * passes, end=(self.last + 1) * passes)


def choose_stretch(log: RunLog, asked: Asked, passes: int) -> Stretch | None:
    """The asked steps; of a long run those in its middle; None for all of a short one.

    Raises:
        ConfigError: for steps that the run does not have.
    """
    records = sum(head.records for head in log.heads)
    last = max((last for head in log.heads for _, _, last in head.subnets), default=0) // passes
    if not asked:
        if records <= SHOWN_RECORDS:
            return None
        length = max(1, (last + 1) * SHOWN_RECORDS // records)
        first = (last + 1 - length) // 2
        return Stretch(first, first + length - 1)
    first = asked.first or 0
    found = Stretch(first, last if asked.last is None else min(asked.last, last))
    if not 0 <= found.first <= found.last:
        until = "" if asked.last is None else f" --to {asked.last}"
        raise ConfigError(f"--from {first}{until}: expected steps from 0 to {last}, in this order")
    return found


def summary_of_all(log: RunLog, num_stages: int) -> Summary:
    """The numbers of a whole run."""
    return summarize_parts(log.parts, num_stages)


def thinned(losses: Sequence[Loss]) -> tuple[list[int], list[int], list[float]]:
    """Streams, sequence IDs and values of a curve; of many losses, means of as many neighbours."""
    width = -(-len(losses) // SHOWN_LOSSES) or 1
    streams, subnets, values = [], [], []
    for begin in range(0, len(losses), width):
        some = losses[begin : begin + width]
        streams.append(int(some[0].stream))
        subnets.append(int(some[-1].sequence_id))
        values.append(sum(loss.value for loss in some) / len(some))
    return streams, subnets, values

"""Losses over the seconds of a run whose speed is known, and changes once at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scripts.paper.common import mean


@dataclass(frozen=True, slots=True)
class Clock:
    """When a system is through with so many steps."""

    rate: float
    """Steps per second."""
    grows_for: int = 0
    """Steps before that."""
    rate_till_then: float = 1.0

    def seconds(self, steps: int) -> float:
        """From the beginning of the run."""
        growing = min(steps, self.grows_for)
        return growing / self.rate_till_then + (steps - growing) / self.rate

    def band(self, axis: Any, seeds: list[list[float]], grain: int, style: str, label: str) -> None:
        """Draw losses of one system: the mean of its seeds, and how far they are apart.

        Each value is the mean of ``grain`` steps.
        """
        count = min(map(len, seeds))
        where = [self.seconds(grain * (n + 1)) for n in range(count)]
        middle = [mean([each[n] for each in seeds]) for n in range(count)]
        (line,) = axis.plot(where, middle, style, label=label)
        ends = [[end(each[n] for each in seeds) for n in range(count)] for end in (min, max)]
        axis.fill_between(where, *ends, color=line.get_color(), alpha=0.15, linewidth=0)

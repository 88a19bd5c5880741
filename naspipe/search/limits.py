"""What a subnet costs, and the limits that a search keeps to."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from naspipe.config.errors import ConfigError

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}

COSTS = ("flops", "params", "latency_ms")
"""By which fronts are drawn."""


class Cost(NamedTuple):
    """Of one subnet; NaN where it is not known."""

    flops: float
    """Operations of one sample's forward, in products and convolutions."""
    params: float
    latency_ms: float
    """Of the forward of one batch on one stage, the sum over its layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that a subnet may cost; 0 for no limit."""

    flops: float = 0.0
    params: float = 0.0
    latency_ms: float = 0.0

    def __post_init__(self) -> None:
        for name in COSTS:
            limit = getattr(self, name)
            if not (math.isfinite(limit) and limit >= 0):
                raise ConfigError(
                    f"--max-{name.replace('_', '-')}: expected a positive number, found {limit!r}"
                )

    def allow(self, cost: Cost) -> bool:
        """Whether a subnet keeps them all; one whose cost is not known does not."""
        return all(
            not getattr(self, name) or getattr(cost, name) <= getattr(self, name) for name in COSTS
        )


def parse_count(text: str, what: str) -> float:
    """A number such as ``25M``, ``1.5G`` or ``40000``; ``what`` it is the value of.

    Raises:
        ConfigError: for anything else, and for 0.
    """
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgt]?)", text.strip().lower())
    value = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not value:
        raise ConfigError(f"{what}: expected a number such as 25M or 1.5G, found {text!r:.80}")
    return value

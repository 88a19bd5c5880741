"""Longest paths of streams whose layers have known costs."""

from __future__ import annotations

from collections.abc import Sequence

from naspipe.config.errors import ConfigError
from naspipe.config.steps import Steps
from naspipe.core.events import Priorities
from naspipe.planning.causal_bound import chain_lengths
from naspipe.planning.cost import CostTable
from naspipe.planning.critical_path import (
    coarsened,
    critical_path_priorities,
    rolling_priorities,
)
from naspipe.sim.chains import Stream


def mean_lengths(streams: Sequence[Stream], steps: Steps) -> list[float]:
    """The longest chain up to the end of each subnet, in the mean of streams."""
    chains = ((each.subnets, each.chain.rules, costs_of(each)) for each in streams)
    lengths = (chain_lengths(*each, steps) for each in chains)
    return [sum(each) / len(each) for each in zip(*lengths, strict=False)]


def costs_of(stream: Stream) -> CostTable:
    """Of a stream's layers.

    Raises:
        ConfigError: when they are not known.
    """
    if stream.costs is None:
        raise ConfigError("dispatch order: expected layers of known costs, found none")
    return stream.costs


def longest_paths(
    stream: Stream, steps: Steps, grain: float, known: int | None, usual: Sequence[float]
) -> list[Priorities]:
    """The priorities of the critical-path order, in whole grains: parts of a subnet's mean work.

    ``known`` and ``usual`` as :func:`naspipe.planning.critical_path.rolling_priorities` has them.
    """
    subnets, rules, costs = stream.subnets, stream.chain.rules, costs_of(stream)
    if known is None:
        levels = critical_path_priorities(subnets, rules, costs, steps)
    else:
        levels = rolling_priorities(subnets, rules, costs, known, usual, steps)
    places = (place for subnet in subnets for place in enumerate(subnet.chain))
    work_ns = sum(costs.of(*place).total_ns for place in places)
    return coarsened(levels, max(1, int(grain * work_ns / len(subnets))))

"""From which K on a longer lag of the shared layers does not make a pipeline any faster."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

from naspipe.config.rules import Lag, Rule, steps_behind
from naspipe.config.space import Block, Space
from naspipe.frontend.simulation.scenario import Scenario

ENOUGH = 0.99
"""Of the rate with a lag that is long enough."""


def late_layers(space: Space) -> tuple[str, ...]:
    """Names of the shared layers whose readers may be behind."""
    return tuple(
        block.name
        for block in space.blocks
        if not isinstance(block, Block) and steps_behind(block.rule) is not None
    )


def with_late(scenario: Scenario, rule: Rule) -> Scenario:
    """The same with another rule for every such layer; a matter of time and memory here."""
    space = scenario.space.with_rules(dict.fromkeys(late_layers(scenario.space), rule))
    sizes = scenario.sizes and replace(scenario.sizes, rules=space.rules)
    return replace(scenario, space=space, sizes=sizes)


def lag_needed(scenario: Scenario, stages: int, rate: Callable[[Scenario], float]) -> int | None:
    """The least K of ``lag(K)`` with which a pipeline is about as fast as with any.

    Args:
        scenario: with whatever rules; the longer the lag, the faster it is.
        stages: of the pipeline; twice as many steps behind are always enough.
        rate: passes per second of a scenario on that pipeline, simulated.

    Returns:
        K, or None where no layer is read late.
    """
    if not late_layers(scenario.space):
        return None
    most = 2 * stages
    enough = ENOUGH * rate(with_late(scenario, Lag(most)))
    return bisect_left(range(most), True, key=lambda k: rate(with_late(scenario, Lag(k))) >= enough)

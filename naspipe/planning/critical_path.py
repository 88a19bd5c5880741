"""Bottom levels: how long the causal chain behind each access is.

The dependency graph of a stream: a subnet's blocks follow one another forward, then
backward; a layer's next READ follows its WRITE (a lagging layer's, K subnets later). The
priority of an access is the longest path from it to the end of the stream, its own cost
included (`docs/schedule.md`, dispatch orders).

Where only the next subnets of the stream are known, priorities are worked out for a few
subnets at a time, and those of one round see less far than those of the next. What counts is
then how much an access may be late: its longest path, less the longest chain from the beginning of
the stream to where the round's knowledge ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from naspipe.config.ids import LayerId, Subnet
from naspipe.config.rules import BlockRule, Rule, rule_of, steps_behind
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.core.events import Priorities
from naspipe.planning.causal_bound import chain_lengths
from naspipe.planning.cost import CostTable, LayerCost

GRAIN = 0.3
"""Of a subnet's mean work: differences below it are left to the paper's order. Chosen on seeds 0 to
4 with the costs of Table 5: about 0.005 to 0.01 less bubble under uniform sampling at 2 and 4
stages, 0.003 more at 8."""

STREAMS_GRAIN = 0.1
"""The same for several streams, which share the bubbles evenly only if small differences count."""

LAG_KEPT = 0.9
"""How much of what is thought of a stream's lag stays from round to round."""

ROUND = 16
"""Subnets whose priorities are worked out together where not all of the stream is known."""


def rolling_priorities(
    subnets: Sequence[Subnet],
    rules: Sequence[BlockRule],
    costs: CostTable,
    known: int,
    usual: Sequence[float] = (),
    steps: Steps = ONE_PASS,
) -> list[Priorities]:
    """As :func:`critical_path_priorities`, when only the next subnets are known at each.

    Args:
        subnets: one stream in sequence order.
        rules: the rule of each block of the chain.
        costs: of every layer.
        known: how many subnets, its own included, a subnet's priorities may look at; the rounds
            look at fewer from all but their first, so 2 * ROUND or more are advisable.
        usual: for each subnet, the longest chain up to its end in the mean of all streams that
            share the stages; a stream whose chain grows faster has more left to do, and goes first.
        steps: how passes form steps; a round is of whole ones.
    """
    lengths = chain_lengths(subnets, rules, costs, steps)
    result: list[Priorities] = []
    lag = 0.0
    stride = max(1, min(ROUND, known) // steps.passes) * steps.passes
    known = max(known, stride)
    for first in range(0, len(subnets), stride):
        horizon = min(first + known, len(subnets))
        levels = critical_path_priorities(subnets[first:horizon], rules, costs, steps)
        end = lengths[horizon - 1]
        if usual:
            now = end - usual[min(horizon, len(usual)) - 1]
            lag = LAG_KEPT * lag + (1 - LAG_KEPT) * now
            end -= int(lag)
        result += [
            Priorities(*(tuple(level - end for level in row) for row in priorities))
            for priorities in levels[:stride]
        ]
    return result


def coarsened(priorities: Sequence[Priorities], grain_ns: int) -> list[Priorities]:
    """Priorities in whole grains, so that the order's next rule decides between near ones.

    That rule is the paper's: backward first, then the older subnet. It finishes what was begun,
    which a small difference between long paths is not worth giving up.

    Args:
        priorities: nanoseconds.
        grain_ns: 1 or more; see :data:`GRAIN`.
    """
    return [
        Priorities(*(tuple(level // grain_ns for level in row) for row in one))
        for one in priorities
    ]


def critical_path_priorities(
    subnets: Sequence[Subnet],
    rules: Sequence[BlockRule],
    costs: CostTable,
    steps: Steps = ONE_PASS,
) -> list[Priorities]:
    """The priorities of every subnet of a stream, in nanoseconds; O(subnets * blocks).

    The passes of a step wait for WRITEs of earlier steps alone, and their own end the step. The
    stream begins with a step.
    """
    waiting: dict[LayerId, tuple[tuple[int, int], ...]] = {}
    together: dict[LayerId, int] = {}
    result: list[Priorities] = []
    for number in reversed(range(len(subnets))):
        layers = list(map(subnets[number].layer, range(len(subnets[number].chain))))
        chain = [costs.of(*place) for place in enumerate(subnets[number].chain)]
        step = steps.step(subnets[number].sequence_id)
        after_write = [
            _next_reader(rule_of(rules, layer), step, waiting.get(layer, ())) for layer in layers
        ]
        priorities = _levels(chain, after_write)
        result.append(priorities)
        for layer, level in zip(layers, priorities.forward, strict=True):
            together[layer] = max(level, together.get(layer, 0))
        if steps.begins(number):
            for layer, level in together.items():
                behind = steps_behind(rule_of(rules, layer)) or 0
                waiting[layer] = ((step, level), *waiting.get(layer, ())[:behind])
            together.clear()
    return result[::-1]


def _levels(chain: Sequence[LayerCost], after_write: Sequence[int]) -> Priorities:
    """Longest paths through one subnet, given what waits for each of its WRITEs."""
    backward: list[int] = []
    write: list[int] = []
    longest = 0
    for cost, waits in zip(chain, after_write, strict=True):
        behind = cost.owed_ns + cost.write_ns
        written = behind + waits
        longest = cost.backward_ns + max(longest, written)
        backward.append(longest)
        write.append(written if behind else longest)
    forward: list[int] = []
    for cost in reversed(chain):
        longest += cost.forward_ns
        forward.append(longest)
    return Priorities(tuple(reversed(forward)), tuple(backward), tuple(write))


def _next_reader(rule: Rule, step: int, later: tuple[tuple[int, int], ...]) -> int:
    """The forward level of the first later step that reads the WRITE of ``step``, 0 for none.

    ``later`` holds later steps with the layer and their levels, the next one first.
    """
    return next((level for number, level in later if rule.last_read(number) >= step), 0)

"""The critical-path order when only the next subnets of a stream are known: for comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from naspipe.config.ids import Subnet
from naspipe.config.rules import BlockRule
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.engine.events import Priorities
from naspipe.plan.bounds import StreamChain, critical_path_priorities
from naspipe.plan.costs import CostTable
from naspipe.plan.pipeline import Pipeline, Plan, costs_of, in_grains

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
    """As ``critical_path_priorities``, when only the next subnets are known at each.

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


def chain_lengths(
    subnets: Iterable[Subnet], rules: Sequence[BlockRule], costs: CostTable, steps: Steps = ONE_PASS
) -> list[int]:
    """The longest chain of the first 1, 2, 3, ... subnets of one stream; nanoseconds."""
    chain = StreamChain(rules, costs, steps)
    lengths: list[int] = []
    for subnet in subnets:
        chain.extend(subnet)
        lengths.append(chain.longest_ns)
    return lengths


def by_next_subnets(plan: Plan, pipeline: Pipeline, known: int) -> Plan:
    """The same plan under the critical-path order; ``known`` subnets may be looked at by each."""
    chains = [(each.subnets, each.chain.rules, costs_of(each)) for each in pipeline.streams]
    usual: list[float] = []
    if len(chains) > 1:  # the longest chain up to the end of each subnet, in the mean of streams
        lengths = (chain_lengths(*each, pipeline.steps) for each in chains)
        usual = [sum(each) / len(each) for each in zip(*lengths, strict=False)]
    levels = [rolling_priorities(*each, known, usual, pipeline.steps) for each in chains]
    return in_grains(plan, pipeline, levels)

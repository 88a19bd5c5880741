"""Which group computes which passes of a step, and on which stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naspipe.config.errors import ConfigError
from naspipe.config.ids import Subnet
from naspipe.config.partition import Partition
from naspipe.config.steps import Steps
from naspipe.schedule.traits import causal_policies, traits_of


def check_groups(groups: int, policy: str, steps: Steps) -> None:
    """Each group must have a pass of every step.

    Raises:
        ConfigError: when one has none, or where a step means nothing.
    """
    if groups == 1:
        return
    if not traits_of(policy).takes_steps:
        raise ConfigError(
            f"groups={groups}: expected the policy {causal_policies()}, found {policy}, which has "
            f"no steps of several passes"
        )
    if groups > steps.passes:
        raise ConfigError(
            f"groups={groups}: expected a pass of every step for each group, found steps of "
            f"{steps.passes}; use --set passes=accumulate:{groups} or subnets:{groups}, or fewer "
            f"groups"
        )


def grouped_cuts(
    subnets: Sequence[Subnet], cutter: Callable[[Subnet], Partition], steps: Steps, groups: int
) -> tuple[Partition, ...]:
    """The partition of each pass, over the stages of all groups.

    All passes of a step are cut like its first one, so that no layer moves within a group.
    """
    made: dict[Partition, list[Partition]] = {}
    cuts: list[Partition] = []
    for start in range(0, len(subnets), steps.passes):
        step = subnets[start : start + steps.passes]
        cut = cutter(next(subnet for subnet in step if subnet.chain))
        if cut not in made:
            made[cut] = [cut.in_group(group, groups) for group in range(groups)]
        for number in range(steps.passes):
            own = made[cut][steps.group(number, groups)]
            cuts.append(own if number >= len(step) or step[number].chain else own.without_blocks)
    return tuple(cuts)

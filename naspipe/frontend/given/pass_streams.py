"""The stream of a run, with every pass of its steps."""

from __future__ import annotations

from collections.abc import Callable

from naspipe.core.space import Space
from naspipe.planning.cost import first_of_kind
from naspipe.runtime.jobs.losses import distilling
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.measuring.layer_sizes import sketch
from naspipe.streams.passes import Choices, in_passes, num_draws
from naspipe.streams.samplers import draw_subnets


def draw_passes(workload: Workload) -> list[Choices]:
    """The choices of every pass, in sequence order.

    Raises:
        ConfigError: for a sampler that cannot be used, or a space or loss without a sandwich.
    """
    space, definition = workload.space, workload.definition
    steps = definition.recipe.steps
    if steps.distills:
        distilling(workload.loss)
    count = num_draws(steps, definition.steps)
    drawn = draw_subnets(definition.sampler, space, definition.seed, count)
    return in_passes(drawn, steps, space, parameter_counts(space))


def parameter_counts(space: Space) -> Callable[[int, int], int]:
    """The number of parameters by block of the chain and candidate, looked up when asked for."""
    twins, known = first_of_kind(space), dict[tuple[int, int], int]()

    def count(block: int, candidate: int) -> int:
        layer = twins[block], candidate
        if layer not in known:
            module = sketch(space, *layer)
            known[layer] = sum(parameter.numel() for parameter in module.parameters())
        return known[layer]

    return count

"""From drawn subnets to the passes of steps: micro-batches, several subnets, the sandwich rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naspipe.core.errors import ConfigError
from naspipe.core.space import Block, Space
from naspipe.core.steps import Steps

Choices = tuple[int, ...]
"""One choice per choice block."""


def num_draws(steps: Steps, num_steps: int) -> int:
    """How many subnets a sampler draws for so many steps."""
    if steps.draws_each:
        return num_steps * steps.passes
    return num_steps * (steps.passes - 2) if steps.distills else num_steps


def in_passes(
    drawn: Sequence[Choices], steps: Steps, space: Space, size: Callable[[int, int], int]
) -> list[Choices]:
    """The subnet of every pass, in sequence order.

    Micro-batches: each drawn subnet stays for its step. Several subnets: as drawn. Sandwich rule:
    the largest, the smallest, then the drawn ones (Yu and Huang 2019).

    Args:
        drawn: see :func:`num_draws`.
        steps: what a step is made of.
        space: whose subnets they are.
        size: parameters of a block of the chain and a candidate; for the sandwich rule.

    Raises:
        ConfigError: for the sandwich rule where one decision reaches several blocks.
    """
    if steps.draws_each:
        return list(drawn)
    if not steps.distills:
        return [choices for choices in drawn for _ in range(steps.passes)]
    largest, smallest = extremes(space, size)
    count = steps.passes - 2
    return [
        choices
        for first in range(0, len(drawn), count)
        for choices in (largest, smallest, *drawn[first : first + count])
    ]


def extremes(space: Space, size: Callable[[int, int], int]) -> tuple[Choices, Choices]:
    """The largest and the smallest subnet: of each choice block the candidate with the most and
    with the fewest parameters, the lower number where several have as many.

    Raises:
        ConfigError: for a space in which one decision reaches several blocks.
    """
    if space.decisions is not None:
        raise ConfigError(
            f"passes=sandwich: expected a space whose blocks choose one by one, found "
            f"{space.name}, where one decision may reach several; use one or accumulate:N"
        )
    largest, smallest = [], []
    for position, block in enumerate(space.blocks):
        if isinstance(block, Block):
            sizes = [size(position, candidate) for candidate in range(len(block.candidates))]
            largest.append(sizes.index(max(sizes)))
            smallest.append(sizes.index(min(sizes)))
    return tuple(largest), tuple(smallest)

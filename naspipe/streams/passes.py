"""Converts drawn subnets into the passes of steps: micro-batches, the sandwich rule, probes.

A step may begin with probes, whose losses determine which subnets it trains. AttentiveNAS (Wang et
al., CVPR 2021, section 3) draws K subnets for each one that a step is to train, and trains the one
with the lowest loss on the step's batch (``best:K``, for the best Pareto front) or with the highest
(``worst:K``, for the worst).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from naspipe.config.blocks import Shared
from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.config.steps import BEST, Steps
from naspipe.streams.feedback import Choices


def num_draws(steps: Steps, num_steps: int) -> int:
    """Return the number of subnets to draw for ``num_steps`` steps: all probes, if any."""
    return num_steps * (steps.probes or steps.draws)


def in_passes(
    drawn: Sequence[Choices], steps: Steps, space: Space, size: Callable[[int, int], int]
) -> list[Choices]:
    """Return the subnet of every pass of whole steps; see :func:`trained_passes`.

    If probes determine what is trained, the first one of each draw represents the others.
    """
    if not steps.probes:
        return trained_passes(drawn, steps, space, size)
    each, found = steps.probes // steps.draws, list[Choices]()
    for first in range(0, len(drawn), steps.probes):
        own = drawn[first : first + steps.probes]
        found += [*own, *trained_passes(own[::each], steps, space, size)]
    return found


def trained_passes(
    drawn: Sequence[Choices], steps: Steps, space: Space, size: Callable[[int, int], int]
) -> list[Choices]:
    """Return the subnet of every trained pass, in sequence order.

    Micro-batches: each drawn subnet is used for its whole step. Several subnets: as drawn. Sandwich
    rule: the largest, the smallest, then the drawn ones (Yu and Huang 2019).

    Args:
        drawn: ``steps.draws`` subnets for each step.
        steps: how passes form steps.
        space: the space of the subnets.
        size: returns the number of parameters of a candidate of a block of the chain; used for the
            sandwich rule.

    Raises:
        ConfigError: for the sandwich rule without extremes; see :func:`extremes`.
    """
    if steps.draws_each:
        return list(drawn)
    if not steps.distills:
        return [choices for choices in drawn for _ in range(steps.trained)]
    largest, smallest = extremes(space, size)
    count = steps.draws
    return [
        choices
        for first in range(0, len(drawn), count)
        for choices in (largest, smallest, *drawn[first : first + count])
    ]


def extremes(space: Space, size: Callable[[int, int], int]) -> tuple[Choices, Choices]:
    """Return the largest and the smallest subnet.

    These have, for each choice block, the candidate with the most and the fewest parameters, the
    lowest number if several are equal, and for each setting the largest and the smallest value.

    Raises:
        ConfigError: if one decision of the space affects several blocks, unless it is a setting, or
            if the two are the same subnet.
    """
    choosing = [n for n, block in enumerate(space.blocks) if not isinstance(block, Shared)]
    if space.decisions is not None:
        found = space.decisions.extremes(lambda number, option: size(choosing[number], option))
    else:
        sizes = [
            [size(position, option) for option in range(space.blocks[position].num_options)]
            for position in choosing
        ]
        largest = tuple(own.index(max(own)) for own in sizes)
        found = largest, tuple(own.index(min(own)) for own in sizes)
    if found[0] == found[1]:
        raise ConfigError(
            f"passes=sandwich: expected a largest and a smallest subnet, found that all of space "
            f"{space.name} have as many parameters; use passes=subnets:N, or npp.Elastic layers, "
            f"whose settings have an order"
        )
    return found


class ProbingStrategy:
    """Proposes the probes of a step, and its other passes once the scores of the probes are known.

    It is an :class:`~naspipe.streams.feedback.ExplorationStrategy` that proposes choices.
    """

    def __init__(
        self,
        drawn: Iterator[Choices],
        steps: Steps,
        expand: Callable[[Sequence[Choices]], Sequence[Choices]],
    ) -> None:
        self._drawn = drawn
        self._steps = steps
        self._expand = expand
        self._probes: list[Choices] = []
        self._scores: list[float] = []
        self._trained: Sequence[Choices] = ()

    def propose(self, sequence_id: int) -> Sequence[int] | None:
        """Return the next subnet; None while a probe of its step has no score."""
        steps = self._steps
        if steps.begins(sequence_id):
            self._probes = list(islice(self._drawn, steps.probes))
            self._scores = []
        if steps.is_probe(sequence_id):
            return self._probes[sequence_id - steps.first(sequence_id)]
        if len(self._scores) < steps.probes:
            return None
        if not steps.pass_of(sequence_id):
            self._trained = self._expand(self._kept())
        return self._trained[steps.pass_of(sequence_id)]

    def observe(self, sequence_id: int, score: float) -> None:
        if self._steps.is_probe(sequence_id):
            self._scores.append(score)

    def _kept(self) -> list[Choices]:
        """Return the best or the worst of the probes of each draw; the first one in case of a tie.

        A NaN score is never chosen if another probe has a number.
        """
        sign = 1.0 if self._steps.keeps == BEST else -1.0
        each = self._steps.probes // self._steps.draws

        def rank(number: int) -> tuple[bool, float]:
            score = self._scores[number]
            return (False, 0.0) if math.isnan(score) else (True, sign * score)

        firsts = range(0, self._steps.probes, each)
        return [self._probes[max(range(first, first + each), key=rank)] for first in firsts]

"""Steps that begin with probes: the subnets that they train follow from the losses of others.

AttentiveNAS (Wang et al., CVPR 2021, section 3) draws K subnets for each one that a step is to
train, and trains the one with the least loss on the step's batch (``best:K``, for the best Pareto
front) or with the most (``worst:K``, for the worst).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from naspipe.core.steps import BEST, Steps
from naspipe.streams.ports import Choices


class ProbingStrategy:
    """Proposes the probes of a step, and when their scores are told its other passes.

    It is an :class:`~naspipe.streams.ports.ExplorationStrategy` that proposes choices.

    Args:
        drawn: subnets without an end; each is probed.
        steps: what a step is made of.
        expand: from the subnets that a step trains to those of its passes.
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
        """The next subnet; None while a probe of its step has no score."""
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
        """How a pass did; only probes matter."""
        if self._steps.is_probe(sequence_id):
            self._scores.append(score)

    def _kept(self) -> list[Choices]:
        """Of the probes of each draw the best or the worst; the first one of those alike.

        A score that is not a number is never kept where another is one.
        """
        sign = 1.0 if self._steps.keeps == BEST else -1.0
        each = self._steps.probes // self._steps.draws

        def rank(number: int) -> tuple[bool, float]:
            score = self._scores[number]
            return (False, 0.0) if math.isnan(score) else (True, sign * score)

        firsts = range(0, self._steps.probes, each)
        return [self._probes[max(range(first, first + each), key=rank)] for first in firsts]

"""How the subnets of a stream form steps: several passes, one optimizer step.

Where a step has several passes, each of them is what the schedule calls a subnet: it has a sequence
ID, tickets and records of its own. The passes of a step read the versions from before it; each
adds its gradients to what the step's earlier passes left, in sequence order, and the last pass
that uses a layer steps it. The passes have one subnet, or each its own.

A step may begin with *probes*: passes that have a forward only. Their losses say which of the
probed subnets the other passes train (AttentiveNAS, Wang et al., CVPR 2021, section 3).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.config.ids import SequenceId

MOST_PASSES = 1000

ROUND = "fair"
"""Steps of as many subnets as a choice block has candidates, which only a space can say."""

NO_PROBES = "none"
BEST, WORST = "best", "worst"

_PROBES = re.compile(rf"({BEST}|{WORST}):([0-9]{{1,4}})")
_TEXT = re.compile(
    r"(?:(accumulate|sandwich|fair)|(subnets)):([0-9]{1,4})(?(2)(?::(passes|users))?)"
)


@dataclass(frozen=True, slots=True)
class Steps:
    """What one step of a stream is made of."""

    passes: int = 1
    """Consecutive sequence IDs that belong to one step."""
    distills: bool = False
    """The first trained pass of each step teaches the others: they learn its output (sandwich
    rule)."""
    draws_each: bool = False
    """Each pass has a subnet of its own; otherwise the sampler draws one for the step."""
    shares_batch: bool = False
    """All passes of a step take the same batch."""
    average: str = "passes"
    """What a sum of gradients is divided by: the number of ``passes`` of the step, or of those
    that used the layer (``users``), or nothing (``none``)."""
    reduction: str = "fold"
    """How the gradients of passes are added up; see :mod:`naspipe.worker.blocks.ports`."""
    weighs_items: bool = False
    """In an average over passes each one counts by the items of its batch."""
    is_gated: bool = False
    """No WRITE of a step begins before all of the step's gradients are there, on every stage."""
    probes: int = 0
    """So many passes, the first ones of a step, have a forward only."""
    keeps: str = BEST
    """Of the probes of one draw, which is trained: that with the least loss (``best``) or with the
    most (``worst``)."""

    def step(self, sequence_id: int) -> int:
        """The step that a pass belongs to."""
        return sequence_id // self.passes

    @property
    def trained(self) -> int:
        """How many passes of a step are trained: those that are no probes."""
        return self.passes - self.probes

    @property
    def draws(self) -> int:
        """How many subnets of a step are drawn; each has as many probes as any other."""
        if self.draws_each:
            return self.trained
        return self.trained - 2 if self.distills else 1

    def is_probe(self, sequence_id: int) -> bool:
        """Whether a pass has a forward only."""
        return sequence_id % self.passes < self.probes

    def pass_of(self, sequence_id: int) -> int:
        """The number of a trained pass in its step; a probe's is below 0."""
        return sequence_id % self.passes - self.probes

    def begins(self, sequence_id: int) -> bool:
        """Whether a pass is the first one of its step."""
        return sequence_id % self.passes == 0

    def place(self, sequence_id: int) -> dict[str, int]:
        """The number of a pass in its step, named ``pass``, or ``probe``; nothing if it is all."""
        if self.passes == 1:
            return {}
        if self.is_probe(sequence_id):
            return {"probe": sequence_id % self.passes}
        return {"pass": self.pass_of(sequence_id)}

    def draw_of(self, sequence_id: int) -> int:
        """The draw that a probe is for."""
        return sequence_id % self.passes * self.draws // self.probes

    def trained_pass(self, sequence_id: int, number: int) -> SequenceId:
        """The trained pass of a number in the same step."""
        return SequenceId(self.first(sequence_id) + self.probes + number)

    def first(self, sequence_id: int) -> SequenceId:
        """The first pass of the same step, be it a probe or not."""
        return SequenceId(sequence_id - sequence_id % self.passes)

    def end(self, sequence_id: int) -> SequenceId:
        """The first pass of the next step."""
        return SequenceId(self.first(sequence_id) + self.passes)

    def group(self, sequence_id: int, num_groups: int) -> int:
        """The group that computes a pass: each has consecutive passes of every step."""
        return sequence_id % self.passes * num_groups // self.passes

    def batch(self, sequence_id: int) -> int:
        """Which batch of the data a pass takes: those of a sandwich or a fair round the same.

        A probe takes that of the first pass that it is for.
        """
        step = self.step(sequence_id)
        if self.shares_batch:
            return step
        number = self.pass_of(sequence_id)
        if number < 0:
            number = self.draw_of(sequence_id) if self.draws_each else 0
        return step * self.trained + number

    @property
    def is_tree(self) -> bool:
        """Whether gradients are added up in halves of halves, so that no half waits for another."""
        return self.reduction == "tree"

    def handed_on(self, passes: Sequence[int]) -> list[tuple[int, int]]:
        """Which stage hands its sum of a layer's gradients to which, in the order of the givers.

        In a chain to the next one. In a tree, whose halves are the step's passes, to the last one
        of the smallest half that has a later one: to the owner in log2 hops at most.

        Args:
            passes: of each stage that uses the layer the last pass there; rising.

        Returns:
            Pairs of places in ``passes``.
        """
        if not self.is_tree:
            return list(pairwise(range(len(passes))))
        numbers = [self.pass_of(each) for each in passes]
        pairs = []
        for giver, number in enumerate(numbers[:-1]):
            level, later = 0, giver
            while later == giver:
                level += 1
                later = max(n for n, each in enumerate(numbers) if each >> level == number >> level)
            pairs.append((giver, later))
        return pairs

    @property
    def is_average(self) -> bool:
        """Whether a step's loss is the average of its passes' losses."""
        return self.average == "passes" and not self.distills


ONE_PASS = Steps()
"""Every subnet is a step."""


def parse_passes(text: str) -> Steps:
    """Read ``one``, ``accumulate:N``, ``subnets:N``, ``subnets:N:AVERAGE``, ``fair:N`` or
    ``sandwich:R``.

    Raises:
        ConfigError: for any other text.
    """
    if text == "one":
        return ONE_PASS
    if match := _TEXT.fullmatch(text):
        kind, number, average = match[1] or match[2], int(match[3]), match[4] or "none"
        if 1 <= number <= MOST_PASSES:
            return {
                "accumulate": Steps(number),
                "subnets": Steps(number, draws_each=True, average=average),
                "fair": Steps(number, draws_each=True, shares_batch=True, average="none"),
                "sandwich": Steps(number + 2, distills=True, shares_batch=True),
            }[kind]
    raise ConfigError(
        f"passes: expected one, accumulate:N with N micro-batches, subnets:N with N subnets (or "
        f"subnets:N:passes, subnets:N:users for averages), fair or fair:N with N subnets on one "
        f"batch, or sandwich:R with R random subnets beside the largest and the smallest (1 to "
        f"{MOST_PASSES}), found {text!r:.80}"
    )


def with_probes(steps: Steps, text: str) -> Steps:
    """Steps that begin with probes: ``best:K`` or ``worst:K``, K for each subnet that is drawn.

    Raises:
        ConfigError: for any other text but ``none``, or too many of them.
    """
    if text == NO_PROBES:
        return steps
    match = _PROBES.fullmatch(text)
    probes = steps.draws * int(match[2]) if match else 0
    if not match or not 1 <= probes <= MOST_PASSES:
        raise ConfigError(
            f"probes: expected none, best:K or worst:K with K subnets probed for each one that is "
            f"drawn (at most {MOST_PASSES} a step), found {text!r:.80}"
        )
    return replace(steps, passes=steps.passes + probes, probes=probes, keeps=match[1])


def recorded_steps(recipe: Mapping[str, Any]) -> Steps:
    """The steps of a run, from the recipe that its manifest holds.

    Raises:
        ConfigError: for passes that no recipe can have.
    """
    steps = parse_passes(str(recipe.get("passes", "one")))
    reduction = str(recipe.get("reduction", "fold")) if steps.passes > 1 else "fold"
    steps = with_probes(steps, str(recipe.get("probes", NO_PROBES)))
    is_gated = bool(recipe.get("clip_global_norm"))
    return replace(steps, reduction=reduction, is_gated=is_gated)

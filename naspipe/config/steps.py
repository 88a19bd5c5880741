"""How the passes of a stream form optimizer steps.

If a step has several passes, the schedule treats each of them as a subnet, with its own sequence
ID, tickets and records. The passes of a step read the versions from before the step. Each adds its
gradients to those of the step's earlier passes, in sequence order, and the last pass that uses a
layer updates it. All passes have the same subnet, or each has its own.

A step may begin with *probes*: forward-only passes. Their losses determine which of the probed
subnets the other passes train (AttentiveNAS, Wang et al., CVPR 2021, section 3).
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
"""Steps with as many subnets as a choice block has candidates; only a space knows the number."""

NO_PROBES = "none"
BEST, WORST = "best", "worst"

_PROBES = re.compile(rf"({BEST}|{WORST}):([0-9]{{1,4}})")
_TEXT = re.compile(
    r"(?:(accumulate|sandwich|fair)|(subnets)):([0-9]{1,4})(?(2)(?::(passes|users))?)"
)


@dataclass(frozen=True, slots=True)
class Steps:
    """The passes of one step of a stream."""

    passes: int = 1
    """Number of consecutive sequence IDs that belong to one step."""
    distills: bool = False
    """The other passes are distilled from the first trained pass of the step (sandwich rule)."""
    draws_each: bool = False
    """Each pass has its own subnet; otherwise the sampler draws one for the step."""
    shares_batch: bool = False
    """All passes of a step take the same batch."""
    average: str = "passes"
    """Divisor of a sum of gradients: the number of ``passes`` of the step, of those that used the
    layer (``users``), or 1 (``none``)."""
    reduction: str = "fold"
    """Order in which gradients of passes are summed; see :mod:`naspipe.worker.blocks.ports`."""
    weighs_items: bool = False
    """In an average over passes, each is weighted by the number of items in its batch."""
    is_gated: bool = False
    """No WRITE of a step begins before all gradients of the step exist, on every stage."""
    probes: int = 0
    """Number of forward-only passes at the beginning of a step."""
    keeps: str = BEST
    """The probe of a draw that is trained: the lowest (``best``) or highest loss (``worst``)."""

    def step(self, sequence_id: int) -> int:
        return sequence_id // self.passes

    @property
    def trained(self) -> int:
        """Number of passes of a step that are trained."""
        return self.passes - self.probes

    @property
    def draws(self) -> int:
        """Number of subnets that are drawn for a step; all have the same number of probes."""
        if self.draws_each:
            return self.trained
        return self.trained - 2 if self.distills else 1

    def is_probe(self, sequence_id: int) -> bool:
        return sequence_id % self.passes < self.probes

    def pass_of(self, sequence_id: int) -> int:
        """Return the number of a trained pass in its step; negative for a probe."""
        return sequence_id % self.passes - self.probes

    def begins(self, sequence_id: int) -> bool:
        """Return True if a pass is the first one of its step."""
        return sequence_id % self.passes == 0

    def place(self, sequence_id: int) -> dict[str, int]:
        """Return ``pass`` or ``probe`` with its number in the step; empty for one-pass steps."""
        if self.passes == 1:
            return {}
        if self.is_probe(sequence_id):
            return {"probe": sequence_id % self.passes}
        return {"pass": self.pass_of(sequence_id)}

    def draw_of(self, sequence_id: int) -> int:
        """Return the draw that a probe belongs to."""
        return sequence_id % self.passes * self.draws // self.probes

    def trained_pass(self, sequence_id: int, number: int) -> SequenceId:
        """Return the trained pass with this number in the same step."""
        return SequenceId(self.first(sequence_id) + self.probes + number)

    def first(self, sequence_id: int) -> SequenceId:
        """Return the first pass of the same step, which may be a probe."""
        return SequenceId(sequence_id - sequence_id % self.passes)

    def end(self, sequence_id: int) -> SequenceId:
        """Return the first pass of the next step."""
        return SequenceId(self.first(sequence_id) + self.passes)

    def group(self, sequence_id: int, num_groups: int) -> int:
        """Return the group that computes a pass: each has consecutive passes of every step."""
        return sequence_id % self.passes * num_groups // self.passes

    def batch(self, sequence_id: int) -> int:
        """Return the batch of a pass; all passes of a sandwich or a fair round have the same one.

        A probe has the batch of the first pass that may train its subnet.
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
        return self.reduction == "tree"

    def handed_on(self, passes: Sequence[int]) -> list[tuple[int, int]]:
        """Return pairs of stages that send and receive sums of a layer's gradients, in order.

        In a chain, each sends to the next one. In a tree, whose halves are the step's passes, each
        sends to the last one of the smallest half that has a later one: at most log2 hops to the
        owner.

        Args:
            passes: the last pass on each stage that uses the layer; rising.

        Returns:
            Pairs of positions in ``passes``.
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
        """True if the loss of a step is the average over its passes."""
        return self.average == "passes" and not self.distills


ONE_PASS = Steps()


def parse_passes(text: str) -> Steps:
    """Parse ``one``, ``accumulate:N``, ``subnets:N[:AVERAGE]``, ``fair:N`` or ``sandwich:R``."""
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
    """Return steps that begin with probes: ``best:K`` or ``worst:K``, K for each drawn subnet."""
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
    """Return the steps of a run, from the recipe in its manifest."""
    steps = parse_passes(str(recipe.get("passes", "one")))
    reduction = str(recipe.get("reduction", "fold")) if steps.passes > 1 else "fold"
    steps = with_probes(steps, str(recipe.get("probes", NO_PROBES)))
    is_gated = bool(recipe.get("clip_global_norm"))
    return replace(steps, reduction=reduction, is_gated=is_gated)

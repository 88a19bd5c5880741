"""How the subnets of a stream form steps: several passes, one optimizer step.

Where a step has several passes, each of them is what the schedule calls a subnet: it has a sequence
ID, tickets and records of its own. The passes of a step read the versions from before it; each
adds its gradients to what the step's earlier passes left, in sequence order, and the last pass
that uses a layer steps it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from naspipe.core.errors import ConfigError
from naspipe.core.ids import SequenceId

MOST_PASSES = 1000


@dataclass(frozen=True, slots=True)
class Steps:
    """What one step of a stream is made of."""

    passes: int = 1
    """Consecutive sequence IDs that belong to one step."""
    distills: bool = False
    """The first pass of each step teaches the others: they learn its output (sandwich rule)."""
    is_gated: bool = False
    """No WRITE of a step begins before all of the step's gradients are there, on every stage."""

    def step(self, sequence_id: int) -> int:
        """The step that a pass belongs to."""
        return sequence_id // self.passes

    def pass_of(self, sequence_id: int) -> int:
        """The number of a pass in its step."""
        return sequence_id % self.passes

    def first(self, sequence_id: int) -> SequenceId:
        """The first pass of the same step."""
        return SequenceId(sequence_id - sequence_id % self.passes)

    def end(self, sequence_id: int) -> SequenceId:
        """The first pass of the next step."""
        return SequenceId(self.first(sequence_id) + self.passes)

    def group(self, sequence_id: int, num_groups: int) -> int:
        """The group that computes a pass: each has consecutive passes of every step."""
        return self.pass_of(sequence_id) * num_groups // self.passes

    def batch(self, sequence_id: int) -> int:
        """Which batch of the data a pass takes: all passes of a sandwich the same."""
        return self.step(sequence_id) if self.distills else sequence_id

    @property
    def loss_parts(self) -> int:
        """What each pass's loss is divided by before its backward: micro-batches are averaged."""
        return 1 if self.distills else self.passes


ONE_PASS = Steps()
"""Every subnet is a step."""


def parse_passes(text: str) -> Steps:
    """Read ``one``, ``accumulate:N`` (micro-batches) or ``sandwich:R`` (random subnets).

    Raises:
        ConfigError: for any other text.
    """
    if text == "one":
        return ONE_PASS
    if match := re.fullmatch(r"(accumulate|sandwich):([0-9]{1,4})", text):
        number, distills = int(match[2]), match[1] == "sandwich"
        if 1 <= number <= MOST_PASSES:
            return Steps(number + 2, distills=True) if distills else Steps(number)
    raise ConfigError(
        f"passes: expected one, accumulate:N with N micro-batches, or sandwich:R with R random "
        f"subnets beside the largest and the smallest (1 to {MOST_PASSES}), found {text!r:.80}"
    )

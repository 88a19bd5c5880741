"""Causal synchronous parallelism (NASPipe, section 3): every READ sees the sequential order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from naspipe.config.ids import SequenceId, Version
from naspipe.config.rules import Exact, Frozen, OwnStep, Rule, own_step, steps_behind
from naspipe.config.steps import ONE_PASS, Steps


class CausalPolicy:
    """The versions that the plain one-at-a-time loop would read.

    Args:
        steps: the order is that of steps; the passes of one read what was there before it.
    """

    binds_late = False

    def __init__(self, steps: Steps = ONE_PASS) -> None:
        self.steps = steps

    def version_to_read(self, rule: Rule, users: Sequence[Version], reader: SequenceId) -> Version:
        """Exact: that of the last step that used it. Where readers are behind: of the last one
        that the rule lets them see."""
        match rule:
            case Exact():
                first = self.steps.first(reader)
                if users[-1] < first:
                    return users[-1]
                return users[max(0, bisect_left(users, first) - 1)]
            case Frozen():
                return users[0]
            case _:
                bound = (rule.last_read(self.steps.step(reader)) + 1) * self.steps.passes
                return users[max(0, bisect_left(users, bound) - 1)]

    def own_step(self, rule: Rule) -> OwnStep:
        """What the rule says: readers are as far behind as it says."""
        return own_step(rule)

    def makes_version(self, rule: Rule, version: Version) -> bool:
        """Steps that only gather gradients leave the layer as it was."""
        return own_step(rule).applies(self.steps.step(version))

    def is_writer(self, rule: Rule) -> bool:
        """All but frozen layers are written by each of their users."""
        return not isinstance(rule, Frozen)

    def keeps_versions(self, rule: Rule) -> bool:
        """Readers of a lagging layer are still under way when it is written."""
        return steps_behind(rule) is not None

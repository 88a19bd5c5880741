"""Asynchronous parallelism (PipeDream): read what is newest, write when the gradient is there.

The weights that a forward read are stashed for its backward. Which versions those are depends
on timing, and so does the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from naspipe.config.ids import LATEST, SequenceId, Version
from naspipe.config.rules import Frozen, OwnStep, Rule, own_step
from naspipe.config.steps import ONE_PASS


class AsynchronousPolicy:
    """Nothing ever waits for a WRITE; the rule lag is not looked at."""

    steps = ONE_PASS
    binds_late = True

    def version_to_read(self, rule: Rule, users: Sequence[Version], reader: SequenceId) -> Version:
        """The newest when the forward begins on the stage."""
        return LATEST

    def own_step(self, rule: Rule) -> OwnStep:
        """What the rule says, but nothing is foreseen: nobody knows how far behind readers are."""
        return replace(own_step(rule), predicts=0)

    def makes_version(self, rule: Rule, version: Version) -> bool:
        """Any may be read."""
        return True

    def is_writer(self, rule: Rule) -> bool:
        """All but frozen layers are written by each of their users."""
        return not isinstance(rule, Frozen)

    def keeps_versions(self, rule: Rule) -> bool:
        """Weight stashing: a backward uses the version that its forward read."""
        return not isinstance(rule, Frozen)

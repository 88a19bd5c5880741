"""Bulk synchronous parallelism (GPipe): subnets of a bulk read what was there before it.

Their gradients do not see one another, so the result depends on the size of the bulk, which
such systems tie to the number of stages. With layers swapped in and out it is VPipe.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from naspipe.config.errors import ConfigError
from naspipe.config.ids import SequenceId, Version
from naspipe.config.rules import Frozen, OwnStep, Rule, own_step
from naspipe.config.steps import ONE_PASS


class BulkPolicy:
    """Subnets ``bulk * i`` to ``bulk * (i + 1) - 1`` form a bulk; the rule lag is not looked at.

    WRITEs are applied in sequence order once every reader of the version before the bulk is
    done: at the flush.
    """

    steps = ONE_PASS
    binds_late = False

    def __init__(self, bulk: int) -> None:
        if bulk < 1:
            raise ConfigError(f"bulk: expected 1 or more subnets, found {bulk}")
        self._bulk = bulk

    def version_to_read(self, rule: Rule, users: Sequence[Version], reader: SequenceId) -> Version:
        """The newest that a subnet of an earlier bulk wrote."""
        if isinstance(rule, Frozen):
            return users[0]
        first_of_bulk = reader - reader % self._bulk
        return users[max(0, bisect_left(users, first_of_bulk) - 1)]

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
        """No: WRITEs wait for the flush."""
        return False

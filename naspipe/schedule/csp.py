"""Causal synchronous parallelism (NASPipe, section 3): every READ sees the sequential order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from naspipe.core.ids import SequenceId, Version
from naspipe.core.rules import Exact, Frozen, Lag, Rule


class CausalPolicy:
    """The versions that the plain one-at-a-time loop would read."""

    binds_late = False

    def version_to_read(self, rule: Rule, users: Sequence[Version], reader: SequenceId) -> Version:
        """Exact: the previous user's. Lag(K): the newest of subnets <= reader - 1 - K."""
        match rule:
            case Exact():
                return users[-1]
            case Frozen():
                return users[0]
            case Lag(subnets):
                return users[max(0, bisect_right(users, reader - 1 - subnets) - 1)]

    def is_writer(self, rule: Rule) -> bool:
        """All but frozen layers are written by each of their users."""
        return not isinstance(rule, Frozen)

    def keeps_versions(self, rule: Rule) -> bool:
        """Readers of a lagging layer are still under way when it is written."""
        return isinstance(rule, Lag)

"""Causal synchronous parallelism (NASPipe, section 3): every READ sees the sequential order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from naspipe.config.errors import ConfigError
from naspipe.config.ids import LATEST, SequenceId, Version
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTraits:
    """What others ask about a policy, in place of its name."""

    is_causal: bool = False
    """Results do not depend on how a run is carried out. So a cut through the stream means
    something, each subnet may have a partition of its own, and a strategy may learn from losses."""
    takes_steps: bool = False
    """Several passes may form a step, and a step's WRITEs may wait for one another."""
    has_bulks: bool = False
    """Subnets are admitted, and read what was there, a bulk at a time."""
    waits_for_versions: bool = True
    """A READ waits for the WRITE before it, and WRITEs come in sequence order. Otherwise nothing
    waits, and older weights are stashed for backwards."""
    window: int | None = None
    """Subnets under way, where the policy says so; 0 for as many as there are stages."""

    def under_way(self, asked: int, stages: int) -> int:
        """Subnets of a stream that may be under way on a stage."""
        if self.window is None:
            return asked
        return self.window or stages


TRAITS: dict[str, PolicyTraits] = {
    "csp": PolicyTraits(is_causal=True, takes_steps=True),
    "bsp": PolicyTraits(has_bulks=True),
    "asp": PolicyTraits(waits_for_versions=False, window=0),
    "sequential": PolicyTraits(is_causal=True, takes_steps=True, window=1),
}
"""By the name of the policy. PipeDream (section 3.2) has as many subnets under way as stages."""


def traits_of(policy: str) -> PolicyTraits:
    """The traits of a policy.

    Raises:
        ConfigError: for a name that is not registered.
    """
    if policy not in TRAITS:
        raise ConfigError(f"unknown policy {policy!r:.80}: expected {' or '.join(TRAITS)}")
    return TRAITS[policy]


def causal_policies() -> str:
    """Their names, for messages."""
    return " or ".join(name for name, traits in TRAITS.items() if traits.is_causal)

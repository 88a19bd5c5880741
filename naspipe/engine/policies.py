"""Synchronisation policies: which version of a layer each subnet reads.

Causal synchronous parallelism (NASPipe, section 3) lets every READ see the sequential order; the
others are baselines.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from naspipe.config.errors import ConfigError
from naspipe.config.ids import LATEST, SequenceId, Version
from naspipe.config.rules import Exact, Frozen, OwnStep, Rule, own_step, steps_behind
from naspipe.config.steps import ONE_PASS, Steps


class SyncPolicy:
    """Which version of a layer a subnet reads: the base of all synchronisation policies."""

    steps: Steps = ONE_PASS
    """How subnets form steps. Of one step's users of a layer, only the last one's WRITE makes a
    version that others read."""
    binds_late = False
    """Whether a subnet reads what is newest when its forward begins on a stage, and WRITEs follow
    one another as they come; otherwise its place in the stream decides both."""

    def version_to_read(self, rule: Rule, users: Sequence[Version], reader: SequenceId) -> Version:
        """The version that ``reader`` asks for.

        ``users`` holds, in rising order, the sequence IDs of the layer's earlier users, from the
        oldest that any later reader can ask for, of each step the last one only; INITIAL stands
        for "none yet".
        """
        raise NotImplementedError

    def own_step(self, rule: Rule) -> OwnStep:
        """How the optimizer of a layer steps, and what its readers foresee.

        By default nothing is foreseen, because nobody knows how far behind readers are.
        """
        return replace(own_step(rule), predicts=0)

    def makes_version(self, rule: Rule, version: Version) -> bool:
        """Whether a version differs from the one before, and subnets that are not yet admitted may
        ask for it."""
        return True

    def is_writer(self, rule: Rule) -> bool:
        """Whether the users of a layer with this rule WRITE it."""
        return not isinstance(rule, Frozen)

    def keeps_versions(self, rule: Rule) -> bool:
        """Whether a layer is written while an older version of it is still read: from a copy.

        Otherwise its WRITE waits until nobody reads the version that it replaces.
        """
        return False


class CausalPolicy(SyncPolicy):
    """The versions that the plain one-at-a-time loop would read.

    The order is that of steps; the passes of one read what was there before it.
    """

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
        return own_step(rule)

    def makes_version(self, rule: Rule, version: Version) -> bool:
        """Steps that only gather gradients leave the layer as it was."""
        return own_step(rule).applies(self.steps.step(version))

    def keeps_versions(self, rule: Rule) -> bool:
        """Readers of a lagging layer are still under way when it is written."""
        return steps_behind(rule) is not None


class BulkPolicy(SyncPolicy):
    """Subnets ``bulk * i`` to ``bulk * (i + 1) - 1`` form a bulk; the rule lag is not looked at.

    They read the newest version that a subnet of an earlier bulk wrote. WRITEs are applied in
    sequence order once every reader of the version before the bulk is done: at the flush.
    """

    def __init__(self, bulk: int) -> None:
        if bulk < 1:
            raise ConfigError(f"bulk: expected 1 or more subnets, found {bulk}")
        self._bulk = bulk

    def version_to_read(self, rule: Rule, users: Sequence[Version], reader: SequenceId) -> Version:
        if isinstance(rule, Frozen):
            return users[0]
        first_of_bulk = reader - reader % self._bulk
        return users[max(0, bisect_left(users, first_of_bulk) - 1)]


class AsynchronousPolicy(SyncPolicy):
    """Nothing ever waits for a WRITE; the rule lag is not looked at."""

    binds_late = True

    def version_to_read(self, rule: Rule, users: Sequence[Version], reader: SequenceId) -> Version:
        return LATEST

    def keeps_versions(self, rule: Rule) -> bool:
        """Weight stashing: a backward uses the version that its forward read."""
        return not isinstance(rule, Frozen)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTraits:
    """What the rest of the program asks about a policy, instead of comparing its name."""

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
    """Number of subnets under way if the policy fixes it; 0 for the number of stages."""

    def under_way(self, asked: int, stages: int) -> int:
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
    """The traits of a policy; raises ConfigError for a name that is not registered."""
    if policy not in TRAITS:
        raise ConfigError(f"unknown policy {policy!r:.80}: expected {' or '.join(TRAITS)}")
    return TRAITS[policy]


def causal_policies() -> str:
    return " or ".join(name for name, traits in TRAITS.items() if traits.is_causal)

"""Synchronisation policies: which version of a layer each subnet reads.

With causal synchronous parallelism (NASPipe, section 3), every READ sees the same version as in
sequential training; the other policies are baselines.
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
    """How subnets form steps. Among one step's users of a layer, only the WRITE of the last one
    makes a version that others read."""
    binds_late = False
    """If True, a subnet reads the newest version when its forward begins on a stage, and WRITEs are
    applied in the order of their arrival. Otherwise the subnet's position in the stream decides
    both."""

    def version_to_read(self, rule: Rule, users: Sequence[Version], reader: SequenceId) -> Version:
        """Return the version that ``reader`` requests.

        ``users`` holds, in ascending order, the sequence IDs of the layer's earlier users, starting
        with the oldest that any later reader can request, and only the last one of each step;
        INITIAL stands for "none yet".
        """
        raise NotImplementedError

    def own_step(self, rule: Rule) -> OwnStep:
        """Return how the optimizer of a layer steps, and how many steps ahead its readers predict.

        By default nothing is predicted, because the staleness of readers is unknown.
        """
        return replace(own_step(rule), predicts=0)

    def makes_version(self, rule: Rule, version: Version) -> bool:
        """Return True if a version is a new one that later subnets may request."""
        return True

    def is_writer(self, rule: Rule) -> bool:
        """Return True if the users of a layer with this rule WRITE it."""
        return not isinstance(rule, Frozen)

    def keeps_versions(self, rule: Rule) -> bool:
        """Return True if a layer is written while an older version is still read from a copy.

        Otherwise its WRITE waits until the version that it replaces has no readers.
        """
        return False


class CausalPolicy(SyncPolicy):
    """The versions that a sequential training loop would read.

    The order is that of steps; all passes of a step read the version from before it.
    """

    def __init__(self, steps: Steps = ONE_PASS) -> None:
        self.steps = steps

    def version_to_read(self, rule: Rule, users: Sequence[Version], reader: SequenceId) -> Version:
        """Exact: the version of the last earlier step that used the layer. Bounded staleness: the
        version of the last step that the rule permits.
        """
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
        """Steps that only accumulate gradients do not change the layer."""
        return own_step(rule).applies(self.steps.step(version))

    def keeps_versions(self, rule: Rule) -> bool:
        """Readers of a lagging layer are still under way when it is written."""
        return steps_behind(rule) is not None


class BulkPolicy(SyncPolicy):
    """Subnets ``bulk * i`` to ``bulk * (i + 1) - 1`` form a bulk; the rule ``lag`` is ignored.

    They read the newest version that a subnet of an earlier bulk wrote. WRITEs are applied in
    sequence order once every reader of the version before the bulk has finished (the flush).
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
    """Nothing waits for a WRITE; the rule ``lag`` is ignored."""

    binds_late = True

    def version_to_read(self, rule: Rule, users: Sequence[Version], reader: SequenceId) -> Version:
        return LATEST

    def keeps_versions(self, rule: Rule) -> bool:
        """Weight stashing: a backward uses the version that its forward read."""
        return not isinstance(rule, Frozen)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTraits:
    """Properties of a policy, queried by the rest of the program instead of comparing names."""

    is_causal: bool = False
    """True if results do not depend on how a run is carried out. Only then are checkpoints of
    the stream meaningful, may each subnet have its own partition, and can a strategy learn from
    losses."""
    takes_steps: bool = False
    """True if several passes may form a step, and a step's WRITEs may wait for one another."""
    has_bulks: bool = False
    """True if subnets are admitted in bulks, and all subnets of a bulk read the versions from
    before it."""
    waits_for_versions: bool = True
    """True if a READ waits for the WRITE before it, and WRITEs are applied in sequence order.
    Otherwise nothing waits, and older weights are stashed for backwards."""
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
"""Traits by the name of the policy. PipeDream (section 3.2) has as many subnets under way as
stages."""


def traits_of(policy: str) -> PolicyTraits:
    """Return the traits of a policy; raises ConfigError if the name is not registered."""
    if policy not in TRAITS:
        raise ConfigError(f"unknown policy {policy!r:.80}: expected {' or '.join(TRAITS)}")
    return TRAITS[policy]


def causal_policies() -> str:
    return " or ".join(name for name, traits in TRAITS.items() if traits.is_causal)

"""What a synchronisation policy's name stands for, where no policy is made of it."""

from __future__ import annotations

from dataclasses import dataclass

from naspipe.config.errors import ConfigError


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

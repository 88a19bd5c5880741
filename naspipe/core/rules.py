"""How a layer's READs follow its WRITEs: the rule each layer names (docs/design.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from naspipe.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Exact:
    """Subnet y reads the version its previous user wrote. Every choice block has this rule."""

    def __str__(self) -> str:
        return "exact"


@dataclass(frozen=True, slots=True)
class Frozen:
    """Never updated: every subnet reads the initial version."""

    def __str__(self) -> str:
        return "frozen"


@dataclass(frozen=True, slots=True)
class Lag:
    """Subnet y reads the version holding every update of subnets <= y - 1 - ``subnets``.

    Updates are applied strictly in sequence order. ``Lag(0)`` reads what :class:`Exact` reads.
    At most ``subnets + 1`` subnets can then be in flight.
    """

    subnets: int

    def __post_init__(self) -> None:
        if self.subnets < 0:
            raise ConfigError(f"lag({self.subnets}): expected 0 or more subnets of lag")

    def __str__(self) -> str:
        return f"lag({self.subnets})"


@dataclass(frozen=True, slots=True)
class Follows:
    """A step's version is made of the one before, and of the step's version of another layer.

    That is the source, of another stream. Nobody else writes it. A pass of step y reads the version
    of step y - 1 - ``steps``: with 0 the one that holds everything before it, with 1 the asymmetric
    update of TSPipe (ICML'22, section 4.2). Layers of the same candidate belong together.
    """

    stream: int
    """Of the source."""
    block: int
    """Of the source, a position in its chain."""
    steps: int

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ConfigError(f"{self}: expected 0 or more steps of lag")

    def __str__(self) -> str:
        return f"follows({self.stream}.{self.block},{self.steps})"


Rule = Exact | Frozen | Lag | Follows


def steps_behind(rule: Rule) -> int | None:
    """How old the versions are that readers of a layer ask for, in steps.

    None where only the newest is ever read, so that no older ones are kept.
    """
    match rule:
        case Lag(steps) | Follows(_, _, steps):
            return steps
    return None


def untrained(rule: Rule) -> Rule:
    """A layer's rule in a stream that is not trained."""
    return rule if isinstance(rule, Follows) else Frozen()


def parse_rule(text: str) -> Rule:
    """Read a rule's text form: ``exact``, ``frozen``, ``lag(K)`` or ``follows(STREAM.BLOCK,K)``.

    The last is for layers of teachers; nobody gives it by hand.

    Raises:
        ConfigError: for any other text.
    """
    if text == "exact":
        return Exact()
    if text == "frozen":
        return Frozen()
    if match := re.fullmatch(r"lag\(([0-9]{1,99})\)", text):
        return Lag(int(match.group(1)))
    if match := re.fullmatch(r"follows\(([0-9]{1,9})\.([0-9]{1,9}),([0-9]{1,9})\)", text):
        return Follows(*map(int, match.groups()))
    raise ConfigError(f"unknown rule {text!r:.80}: expected exact, frozen or lag(K), as in lag(8)")

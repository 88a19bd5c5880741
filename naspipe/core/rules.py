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


Rule = Exact | Frozen | Lag


def parse_rule(text: str) -> Rule:
    """Read a rule's text form: ``exact``, ``frozen`` or ``lag(K)``.

    Raises:
        ConfigError: for any other text.
    """
    if text == "exact":
        return Exact()
    if text == "frozen":
        return Frozen()
    if match := re.fullmatch(r"lag\(([0-9]{1,99})\)", text):
        return Lag(int(match.group(1)))
    raise ConfigError(f"unknown rule {text!r:.80}: expected exact, frozen or lag(K), as in lag(8)")

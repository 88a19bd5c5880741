"""Parameter groups: which parameters of a layer are stepped with other options than the rest.

    [[parameter_groups]]
    match = ["bias", "norm"]
    weight_decay = 0.0

The first group that matches a parameter has it; the rest has the recipe's options alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from naspipe.core.errors import ConfigError
from naspipe.core.settings.checks import expect, is_finite

KINDS = ("bias", "norm", "vector")
"""What a group may match by, beside patterns of names."""

_NORM = re.compile(r"Norm(\d+d)?$")
_BIAS = re.compile(r"bias$|bias_|.*_bias$")
_PATTERN = re.compile(r"[.*?\[]")


class NamedParameter(NamedTuple):
    """What of a parameter decides over its group."""

    name: str
    """As in ``3.1.linear.bias`` or ``head.bias``: of its layer, then inside of it."""
    dims: int
    """How many dimensions it has."""
    owner: str
    """The class of the module that it belongs to."""


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters that are stepped with options of their own."""

    match: tuple[str, ...]
    lr_factor: float
    """Of every step's rate."""
    options: Mapping[str, Any]
    """In the place of the recipe's ``optimizer_options``."""

    def has(self, parameter: NamedParameter) -> bool:
        """Whether one of its patterns or kinds is the parameter's."""
        return any(_matches(each, parameter) for each in self.match)


def parse_groups(written: object) -> tuple[ParameterGroup, ...]:
    """Groups as a recipe has them: mappings with ``match``, ``lr_factor`` and options.

    Raises:
        ConfigError: for anything else, in one line that names the group.
    """
    if not isinstance(written, Sequence) or isinstance(written, str):
        raise ConfigError(
            f"parameter_groups: expected a list such as "
            f'[{{"match": ["bias", "norm"], "weight_decay": 0.0}}], found {written!r:.80}'
        )
    return tuple(_parsed(f"parameter_groups[{n}]", each) for n, each in enumerate(written))


def group_of(parameter: NamedParameter, groups: Sequence[ParameterGroup]) -> int:
    """The number of a parameter's group, counted from 1; 0 for the rest."""
    return next((n for n, group in enumerate(groups, 1) if group.has(parameter)), 0)


def _matches(pattern: str, parameter: NamedParameter) -> bool:
    match pattern:
        case "bias":
            return _BIAS.match(parameter.name.rpartition(".")[2]) is not None
        case "norm":
            return _NORM.search(parameter.owner) is not None
        case "vector":
            return parameter.dims < 2
        case _:
            return fnmatchcase(parameter.name, pattern)


def _parsed(where: str, written: object) -> ParameterGroup:
    if not isinstance(written, Mapping) or not written.get("match"):
        raise ConfigError(
            f"{where}: expected match and options, as in "
            f'{{"match": "norm", "weight_decay": 0.0}}, found {written!r:.80}'
        )
    match = written["match"]
    patterns = [match] if isinstance(match, str) else match
    if not isinstance(patterns, Sequence):
        raise ConfigError(
            f"{where}: match: expected a text or a list of texts, found {match!r:.80}"
        )
    for each in patterns:
        expect(
            each in KINDS or (isinstance(each, str) and _PATTERN.search(each) is not None),
            f"{where}: match", f"{', '.join(KINDS)} or a pattern of names such as *.weight or "
            f"head.*", each,
        )  # fmt: skip
    factor = written.get("lr_factor", 1.0)
    is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
    is_good = is_number and is_finite(factor) and factor >= 0
    expect(is_good, f"{where}: lr_factor", "0 or more", factor)
    options = {key: value for key, value in written.items() if key not in ("match", "lr_factor")}
    if "lr" in options:
        raise ConfigError(
            f"{where}: expected lr_factor, which multiplies the rate of each step, found lr="
            f"{options['lr']!r:.40}"
        )
    for option, value in options.items():
        expect(is_finite(value), f"{where}: {option}", "finite numbers", value)
    return ParameterGroup(tuple(patterns), float(factor), options)

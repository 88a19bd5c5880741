"""What a run's layers and functions are made of, as ``made_of.json`` has it, and where two differ.

It has ``texts``, each once; ``layers``, for each block the number of each candidate's text; and
``captured``, by ``loss``, ``optimizer`` or a metric what the function captures. ``files`` has a
digest of each of the user's files that they are in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from naspipe.config.errors import ConfigError
from naspipe.config.text import parse_json

_LONGEST = 120


class MadeOf(NamedTuple):
    """Texts of each block's candidates, and captured values by whose they are and by name."""

    layers: Sequence[Sequence[str]]
    captured: Mapping[str, Mapping[str, str]]
    code: Mapping[str, str]
    """A digest of each of the user's files; empty where what they wrote is in no file."""


class Unlike(NamedTuple):
    """The first part that two runs make of something else."""

    what: str
    """As in ``layer 1.0``, or ``loss's scale``."""
    one: str
    other: str
    aside: str = ""
    """What more is said of it."""


def as_made_of(values: Any, where: Path) -> MadeOf:
    """What a file's values say.

    Raises:
        ConfigError: when they are not what was written.
    """
    try:
        texts = [str(text) for text in values["texts"]]
        layers = [[texts[number] for number in numbers] for numbers in values["layers"]]
        said = values["captured"].items()
        captured = {str(whose): dict(each.items()) for whose, each in said}
        code = dict(values["files"].items())
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{where} is damaged: {error!r:.80}") from error
    return MadeOf(layers, captured, code)


def read_made_of(path: Path) -> MadeOf | None:
    """What a file says; None where there is none, as of a simulated run.

    Raises:
        ConfigError: when it is damaged.
    """
    if not path.exists():
        return None
    try:
        values = parse_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: {error!r:.80}") from error
    return as_made_of(values, path)


def first_unlike(space: Mapping[str, Any], one: MadeOf, other: MadeOf) -> Unlike | None:
    """The first layer, or else captured value, that differs; None where nothing does.

    Args:
        space: of a manifest.
        one: of a run.
        other: of another one of this space.
    """
    sides = zip(space["labels"], space["shared"], one.layers, other.layers, strict=False)
    for label, is_shared, was, now in sides:
        for candidate, (left, right) in enumerate(zip(was, now, strict=False)):
            if left != right:
                is_moved = sorted(was) == sorted(now)
                aside = f"the candidates of block {label} are the same in another order"
                what = f"layer {label}" if is_shared else f"layer {label}.{candidate}"
                return Unlike(what, *_differing_lines(left, right), aside if is_moved else "")
    for whose in sorted(one.captured.keys() & other.captured.keys()):
        mine, others = one.captured[whose], other.captured[whose]
        for name in sorted(mine.keys() | others.keys()):
            left, right = (str(side.get(name, "absent")) for side in (mine, others))
            if left != right:
                return Unlike(f"{whose}'s {name}", left, right)
    return None


def otherwise_written(one: MadeOf, other: MadeOf) -> list[str]:
    """Names of files whose contents differ between two runs."""
    if not (one.code and other.code):
        return []
    names = one.code.keys() | other.code.keys()
    return sorted(name for name in names if one.code.get(name) != other.code.get(name))


def _differing_lines(one: str, other: str) -> tuple[str, str]:
    """The first line of two texts that is not the same."""
    pairs = zip_longest(one.splitlines(), other.splitlines(), fillvalue="nothing")
    left, right = next(pair for pair in pairs if pair[0] != pair[1])
    return left.strip()[:_LONGEST], right.strip()[:_LONGEST]

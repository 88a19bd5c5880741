"""What values of a setting are allowed: a test, and the words that a refusal says it in."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from naspipe.core.settings.sizes import parse_bytes, parse_subnets


@dataclass(frozen=True, slots=True)
class Allowed:
    """One bound of a setting."""

    text: str
    """As in "expected 1 or more"."""
    holds: Callable[[Any], bool]
    words: tuple[str, ...] = ()
    """All values that are allowed, where they are a list of words."""


def at_least(least: float) -> Allowed:
    """Numbers from a least one on."""
    return Allowed(f"{least:g} or more", lambda value: bool(value >= least))


def between(least: float, most: float, unit: str = "") -> Allowed:
    """Numbers from a least one to a greatest one, both allowed."""
    text = f"{least:g} to {most:g} {unit}".rstrip()
    return Allowed(text, lambda value: bool(least <= value <= most))


def above(bound: float, at_most: float = math.inf) -> Allowed:
    """Numbers greater than a bound, and not greater than another."""
    text = f"more than {bound:g}" + (f", at most {at_most:.15g}" if at_most < math.inf else "")
    return Allowed(text, lambda value: bool(bound < value <= at_most))


def share(what: str) -> Allowed:
    """Numbers from 0 to below 1."""
    return Allowed(f"{what} from 0 to below 1", lambda value: bool(0 <= value < 1))


def norm() -> Allowed:
    """The norm of a gradient, of which 0 stands for none."""
    return Allowed(
        "a finite norm, or 0 for none", lambda value: math.isfinite(value) and bool(value >= 0)
    )


def one_of(*words: str) -> Allowed:
    """Some words."""
    return Allowed(" or ".join(words), lambda value: value in words, words)


def named_in(words: Sequence[str]) -> Allowed:
    """Words of a list to which others may be added later; ``words`` has those of now."""
    return Allowed(" or ".join(words), lambda value: value in words, tuple(words))


def like(pattern: str, text: str) -> Allowed:
    """Texts of a form."""
    return Allowed(text, lambda value: re.fullmatch(pattern, value) is not None)


def byte_count() -> Allowed:
    """Bytes, or nothing."""
    return Allowed("bytes, as in 2GB", lambda value: not value or parse_bytes(value) > 0)


def budget() -> Allowed:
    """Bytes, a number of subnets, or nothing."""
    return Allowed(
        "bytes, as in 512MiB, or a number of subnets, as in 3x",
        lambda value: not value or parse_bytes(value) > 0 or parse_subnets(value) > 0,
    )

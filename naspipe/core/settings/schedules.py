"""How the rate follows the number of the step: named schedules, tables and users' functions."""

from __future__ import annotations

import hashlib
import math
import re
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import lru_cache

from naspipe.core.errors import ConfigError
from naspipe.core.settings.allowed import Allowed
from naspipe.core.settings.given_code import GivenCode, name_of

SCHEDULES = ("constant", "linear", "cosine", "inverse_sqrt")
FALLING = ("linear", "cosine")
"""Those that end at 0, and so may begin anew."""

_RECORDED = re.compile(r".+@[0-9a-f]{16}")
_TABLE = re.compile(r"table\((.*)\)")


def allowed_schedules() -> Allowed:
    """Names, tables, and what manifests have of functions."""
    return Allowed(f"{' or '.join(SCHEDULES)} or table(STEP:FACTOR,...)", _is_schedule)


def by_step(schedule: str) -> bool:
    """Whether it says the rate of every step by itself, so that there is no warm-up before it."""
    return schedule not in SCHEDULES


def factor(schedule: str, step: int) -> float:
    """What the rate of a step is multiplied by, of a table or a function.

    Raises:
        ConfigError: for a function of which there is but the name, as a manifest has it.
    """
    if isinstance(schedule, GivenCode):
        return float(schedule.code(step))
    if _TABLE.fullmatch(schedule) is None:
        raise ConfigError(
            f"schedule {schedule}: expected the function itself, found its name; go on with "
            f"naspipe.train(..., lr=FUNCTION)"
        )
    firsts, factors = _parsed(schedule)
    return factors[bisect_right(firsts, step) - 1]


def in_cycle(position: int, first: int, growth: int) -> tuple[int, int]:
    """A step's place in its cycle, and how many steps that has.

    Args:
        position: of the step, counted from the first cycle's first one.
        first: steps of the first cycle.
        growth: by how much each cycle is longer than the one before.
    """
    length = first
    if growth == 1:
        position %= length
    while position >= length:
        position, length = position - length, length * growth
    return position, length


def table_text(rates: Mapping[int, float]) -> str:
    """A table as the recipe has it, from rates by the first steps that have them.

    Raises:
        ConfigError: for anything but such a mapping.
    """
    for step, rate in rates.items():
        if type(step) is not int or isinstance(rate, bool) or not isinstance(rate, int | float):
            raise ConfigError(
                f"lr: expected rates by steps, as in {{0: 0.1, 100: 0.01}}, found "
                f"{step!r:.40}: {rate!r:.40}"
            )
    text = f"table({','.join(f'{step}:{float(rate)!r}' for step, rate in sorted(rates.items()))})"
    _parsed(text)
    return text


def schedule_of(rate: Callable[[int], float], steps: int) -> GivenCode:
    """A user's function as a schedule; it is called here, once for each step.

    Manifests have its name and a digest of its rates.

    Raises:
        ConfigError: for a rate that is none.
    """
    rates = array("d")
    for step in range(steps):
        value = rate(step)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(
                f"lr: expected a number for step {step}, found {name_of(rate)} to return "
                f"{value!r:.40} of type {type(value).__name__}"
            )
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(
                f"lr: expected a rate of 0 or more for step {step}, found {name_of(rate)} to "
                f"return {value!r:.40}"
            )
        rates.append(value)
    packed = struct.pack(f"<{len(rates)}d", *rates)
    digest = hashlib.blake2b(packed, digest_size=8).hexdigest()
    return GivenCode(rates.__getitem__, f"{name_of(rate)}@{digest}")


def _is_schedule(text: str) -> bool:
    if _TABLE.fullmatch(text):
        _parsed(text)
        return True
    return text in SCHEDULES or _RECORDED.fullmatch(text) is not None


@lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[list[int], list[float]]:
    """The first steps of a table, rising from 0, and the factors from each of them on."""
    found = _TABLE.fullmatch(text)
    pairs = [each.split(":") for each in found.group(1).split(",")] if found else []
    try:
        firsts = [int(first) for first, _ in pairs]
        factors = [float(value) for _, value in pairs]
    except ValueError:
        firsts, factors = [], []
    is_rising = firsts == sorted(set(firsts)) and firsts[:1] == [0]
    if not is_rising or not all(math.isfinite(each) and each >= 0 for each in factors):
        raise ConfigError(
            f"schedule: expected rising steps from 0, each with a factor of 0 or more, as in "
            f"table(0:1,100:0.1), found {text:.80}"
        )
    return firsts, factors

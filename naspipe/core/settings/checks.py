"""Checks that every node of the configuration makes of its values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from naspipe.core.errors import ConfigError


def expect(is_good: bool, what: str, expected: str, found: object) -> None:
    """Refuse a value of a setting.

    Raises:
        ConfigError: unless ``is_good``.
    """
    if not is_good:
        raise ConfigError(f"{what}: expected {expected}, found {found!r:.80}")


def is_finite(value: Any) -> bool:
    """Whether neither the value nor anything in it is infinite or not a number."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)

"""Where two parts of manifests differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_ABSENT = object()


def differing(one: Any, other: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Dotted keys in sorted order where two JSON values differ, and both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            inner = f"{key}.{name}" if key else name
            yield from differing(one.get(name, _ABSENT), other.get(name, _ABSENT), inner)
    elif type(one) is not type(other) or one != other:
        yield key, _value_text(one), _value_text(other)


def _value_text(value: Any) -> str:
    return "absent" if value is _ABSENT else f"{value!r:.80}"

"""What two manifests define, and where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_ABSENT = object()


def definitions(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[Any, Any]:
    """What two manifests define, so that it can be compared.

    Earlier manifests say of a loss only what it is called, not what it was made with. Beside one of
    them nothing more is asked of the other.
    """
    found = [manifest.get("definition") for manifest in (one, other)]
    if not all("stateless" in manifest for manifest in (one, other)):
        found = [
            {**each, "loss": str(each["loss"]).partition("(")[0]}
            if isinstance(each, dict) and "loss" in each
            else each
            for each in found
        ]
    return found[0], found[1]


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

"""Parsers for untrusted text: JSON, sizes such as ``512MiB`` or ``3x``, and keywords."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

from naspipe.config.errors import ConfigError


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise ValueError for invalid JSON, too many digits or too deep nesting."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


_UNITS = {"": 1, "b": 1} | {
    name: base**power
    for power, letter in enumerate("kmgt", 1)
    for name, base in ((f"{letter}ib", 1024), (f"{letter}b", 1000), (letter, 1024))
}


def parse_bytes(text: str) -> int:
    """Return the bytes in ``512MiB``, ``2GB`` or ``4096``; 0 for anything else."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]*)", text.strip().lower())
    return int(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0


def parse_subnets(text: str) -> float:
    """Return the number of subnets in ``3x`` or ``1.5x``; 0 for anything else."""
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)x", text.strip().lower())
    return float(match[1]) if match else 0.0


T = TypeVar("T")
_PLAIN = (bool, int, float, str, type(None))


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """Return a hint at the most similar known word, or an empty text."""
    close = difflib.get_close_matches(text, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def check_keywords(
    call: Callable[..., Any], name: str, given: Mapping[str, Any], places: int = 0
) -> None:
    """Reject keywords that a call does not take, and suggest the most similar one.

    Args:
        call: a function, or a class's ``__init__``.
        name: its public name.
        given: keywords.
        places: number of positional arguments.
    """
    parameters = signature(call).parameters.values()
    if not given or any(each.kind is Parameter.VAR_KEYWORD for each in parameters):
        return
    own = [each for each in parameters if each.name != "self"]
    known = [each.name for each in own]
    for key, value in given.items():
        if key in known:
            continue
        todo = ""
        if close := difflib.get_close_matches(key, known, n=1):
            left = [each.name for each in own[places:] if each.default is each.empty]
            words = [f"{each}=..." for each in left if each not in (*given, *close)]
            said = repr(value)[:40] if isinstance(value, _PLAIN) else "..."
            todo = f" (did you mean {close[0]}?); write {', '.join((*words, f'{close[0]}={said}'))}"
        raise ConfigError(
            f"{name}: unknown keyword {key:.80}{todo}; expected some of {', '.join(known)}"
        )


def knows_keywords(kind: type[T]) -> type[T]:
    """Decorate a class so that its constructor rejects unknown keywords with a ConfigError."""
    begin: Callable[..., None] = kind.__init__

    @wraps(begin)
    def checked(self: T, *args: Any, **kwargs: Any) -> None:
        check_keywords(begin, kind.__name__, kwargs, len(args))
        begin(self, *args, **kwargs)

    kind.__init__ = checked  # type: ignore[method-assign, assignment]
    return kind

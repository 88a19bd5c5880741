"""Keywords that a call does not have: refused in a line that says which one was meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

from naspipe.core.errors import ConfigError

T = TypeVar("T")
_PLAIN = (bool, int, float, str, type(None))


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """What a message says of the known word that is nearest, if one is near."""
    close = difflib.get_close_matches(text, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def check_keywords(
    call: Callable[..., Any], name: str, given: Mapping[str, Any], places: int = 0
) -> None:
    """Refuse keywords that a call does not take.

    Args:
        call: a function, or a class's ``__init__``.
        name: what users call it.
        given: keywords.
        places: arguments that are given without a keyword.

    Raises:
        ConfigError: naming the first of them, what to write, and those that there are.
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
    """The class, whose constructor refuses what it does not take in one line."""
    begin: Callable[..., None] = kind.__init__

    @wraps(begin)
    def checked(self: T, *args: Any, **kwargs: Any) -> None:
        check_keywords(begin, kind.__name__, kwargs, len(args))
        begin(self, *args, **kwargs)

    kind.__init__ = checked  # type: ignore[method-assign, assignment]
    return kind

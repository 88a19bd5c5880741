"""Keywords that a call does not have: refused in a line that says which one was meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar

from naspipe.core.errors import ConfigError

T = TypeVar("T")


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """What a message says of the known word that is nearest, if one is near."""
    close = difflib.get_close_matches(text, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def check_keywords(call: Callable[..., Any], name: str, given: Mapping[str, Any]) -> None:
    """Refuse keywords that a call does not take.

    Args:
        call: a function, or a class's ``__init__``.
        name: what users call it.
        given: keywords.

    Raises:
        ConfigError: naming the first of them, and those that there are.
    """
    parameters = signature(call).parameters.values()
    if not given or any(each.kind is Parameter.VAR_KEYWORD for each in parameters):
        return
    known = [each.name for each in parameters if each.name != "self"]
    for key in given:
        if key not in known:
            raise ConfigError(
                f"{name}: unknown keyword {key:.80}{did_you_mean(key, known)}; expected some of "
                f"{', '.join(known)}"
            )


def knows_keywords(kind: type[T]) -> type[T]:
    """The class, whose constructor refuses what it does not take in one line."""
    begin: Callable[..., None] = kind.__init__

    @wraps(begin)
    def checked(self: T, *args: Any, **kwargs: Any) -> None:
        check_keywords(begin, kind.__name__, kwargs)
        begin(self, *args, **kwargs)

    kind.__init__ = checked  # type: ignore[method-assign, assignment]
    return kind

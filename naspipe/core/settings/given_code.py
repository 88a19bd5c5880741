"""A user's function in the place of a setting's text: its name is what is recorded and compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from naspipe.core.user_code import module_of


class GivenCode(str):
    """The name of a function or class, as in ``mymodule:Lion``, and the function itself.

    Manifests, comparisons and copies have the name alone: nothing is pickled. Stage processes are
    forked, so they have the function, too.
    """

    code: Callable[..., Any]

    def __new__(cls, code: Callable[..., Any], name: str = "") -> GivenCode:
        """With a name of its own, or that of the function."""
        made = super().__new__(cls, name or name_of(code))
        made.code = code
        return made

    def __deepcopy__(self, memo: object) -> str:
        return str(self)

    def __str__(self) -> str:
        return self[:]


def name_of(code: Callable[..., Any]) -> str:
    """``module:name`` of a function or class; of a partial with its arguments, of an object with
    its class's.
    """
    if isinstance(code, partial):
        given = [*map(repr, code.args), *(f"{k}={v!r}" for k, v in sorted(code.keywords.items()))]
        return f"{name_of(code.func)}({', '.join(given)})"
    named = code if hasattr(code, "__qualname__") else type(code)
    return f"{module_of(named)}:{named.__qualname__}"

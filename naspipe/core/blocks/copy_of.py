"""Factories that copy an object that the user has made."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any


class CopyOf(partial[Any]):
    """A factory whose layers begin as deep copies of a module that the user has made.

    It is a ``functools.partial``, so whatever looks into factories finds the module as its
    argument.

    Args:
        original: the user's own module. A run never changes it.
        copy: makes the copy.
    """

    def __new__(cls, original: Any, copy: Callable[[Any], Any] = deepcopy) -> CopyOf:
        """Make a partial call of ``copy``."""
        return super().__new__(cls, copy, original)

    @property
    def original(self) -> Any:
        """The user's own module."""
        return self.args[0]

    def in_place(self) -> Any:
        """Return the original itself, for code that may change it, as in a forked process."""
        return self.original

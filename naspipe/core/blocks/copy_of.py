"""Factories that copy an object that the user has made."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any


class CopyOf(partial[Any]):
    """A factory whose layers begin as deep copies of a module that the user has made.

    It is a ``functools.partial``, so whatever looks into factories finds the module as its
    argument.

    Args:
        original: the user's own module. A run never changes it.
    """

    def __new__(cls, original: Any) -> CopyOf:
        """Make a partial call of ``copy.deepcopy``."""
        return super().__new__(cls, deepcopy, original)

    @property
    def original(self) -> Any:
        """The user's own module."""
        return self.args[0]

    def in_place(self) -> Any:
        """Return the original itself, for code that may change it, as in a forked process."""
        return self.original

"""Factories that copy an object that the user has made."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CopyOf:
    """A factory whose layers begin as deep copies of a module that the user has made.

    Args:
        original: the user's own module. A run never changes it.
    """

    original: Any

    def __call__(self) -> Any:
        """Return a new copy."""
        return deepcopy(self.original)

    def in_place(self) -> Any:
        """Return the original itself, for code that may change it, as in a forked process."""
        return self.original

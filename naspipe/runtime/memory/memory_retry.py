"""A second try for what was short of device memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import ParamSpec, TypeVar

import torch

from naspipe.runtime.memory.shortages import note

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


class MemoryRetry:
    """Carries out what needs device memory, a second time where the first was short of it.

    Args:
        free_memory: frees what can be freed.
    """

    def __init__(self, free_memory: Callable[[], None]) -> None:
        self._free_memory = free_memory
        self.retries = 0
        """How often a second time was needed."""

    def attempt(self, act: Callable[[], _Result]) -> _Result:
        """Do what changes nothing when memory is short; then free what can be, and try again."""
        try:
            return act()
        except torch.OutOfMemoryError:
            pass
        note()
        # Out here nothing holds the first try's tensors any more: its traceback did.
        self.retries += 1
        self._free_memory()
        return act()

    def wrapped(self, act: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """The same act, each time with a second try; what a first one left must do no harm."""

        @wraps(act)
        def attempted(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            return self.attempt(partial(act, *args, **kwargs))

        return attempted

"""Global generators that two parties take turns with."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch


class Randomness:
    """The state of every global generator, as the strategy left it: it may seed or use them all.

    The run uses torch's own in the same process, so neither may see the other's draws.
    """

    def __init__(self, seed: int) -> None:
        self._states: Any = None
        self._seed = seed

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The strategy's generators, and one thread for its arithmetic."""
        before, threads = _states(), torch.get_num_threads()
        torch.set_num_threads(1)
        if self._states is None:
            random.seed(self._seed)
            numpy.random.seed(self._seed % 2**32)
            torch.default_generator.manual_seed(self._seed)
        else:
            _set_states(self._states)
        try:
            yield
        finally:
            self._states = _states()
            _set_states(before)
            torch.set_num_threads(threads)


def _states() -> tuple[Any, Any, Any]:
    return random.getstate(), numpy.random.get_state(), torch.get_rng_state()


def _set_states(states: tuple[Any, Any, Any]) -> None:
    random.setstate(states[0])
    numpy.random.set_state(states[1])
    torch.set_rng_state(states[2])

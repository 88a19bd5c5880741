"""The global generators of torch, numpy and Python: started at a key, and lent to one at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_all(key: int) -> None:
    """Start the global generators of torch (the CPU's), numpy and Python at a key."""
    torch.default_generator.manual_seed(key)
    np.random.seed(key % (1 << 32))
    random.seed(key)


@contextmanager
def kept_draws() -> Iterator[None]:
    """The global generators go on afterwards where they stood before."""
    before = _states()
    try:
        yield
    finally:
        _set_states(before)


class Randomness:
    """The state of every global generator, as a strategy left it: it may seed or use them all.

    The run uses them in the same process, so neither may see the other's draws.

    Args:
        seed: where they begin.
    """

    def __init__(self, seed: int) -> None:
        self._states: Any = None
        self._seed = seed

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The strategy's generators, and one thread for its arithmetic."""
        with kept_draws(), one_thread():
            if self._states is None:
                seed_all(self._seed)
            else:
                _set_states(self._states)
            try:
                yield
            finally:
                self._states = _states()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: a sum in two adds up in another order."""
    threads = torch.get_num_threads()
    if threads != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads != 1:
            torch.set_num_threads(threads)


def _states() -> tuple[Any, Any, Any]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_states(states: tuple[Any, Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])

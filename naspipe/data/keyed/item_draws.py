"""Random draws of items: every generator that a data set may use, started from a key."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def item_key(seed: int, number: int, row: int) -> int:
    """Where the draws of one item start; a public rule.

    Args:
        seed: of the run.
        number: of the batch that the item is in.
        row: of the item in the data set.
    """
    return _key(f"{seed}/item/{number}/{row}")


def batch_key(seed: int, number: int) -> int:
    """Where the draws of a ``collate_fn`` start; a public rule."""
    return _key(f"{seed}/batch/{number}")


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seed_all(key: int) -> None:
    """Start the global generators of torch (the CPU's), numpy and Python at a key."""
    torch.default_generator.manual_seed(key)
    np.random.seed(key % (1 << 32))
    random.seed(key)


@contextmanager
def kept_draws() -> Iterator[None]:
    """Compute on one thread; the global generators go on afterwards where they stood before.

    A sum in two threads adds up in another order. So items are made by one, in every process.
    """
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    threads = torch.get_num_threads()
    if threads != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads != 1:
            torch.set_num_threads(threads)
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])

"""Where the random draws of items start."""

from __future__ import annotations

import hashlib


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

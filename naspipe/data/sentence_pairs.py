"""Which sentence pairs are kept, and which split each one belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from naspipe.data.help_pages import Pair

MIN_WORDS = 4
MAX_WORDS = 60
MAX_LENGTH_RATIO = 2.0
SPLITS = ("train", "valid", "test")
_HELD_OUT_PERCENT = 2  # of the pages, for each of valid and test


def is_clean(source: str, target: str) -> bool:
    """Tell whether a pair looks like a sentence and its translation.

    Both have `MIN_WORDS` to `MAX_WORDS` words, neither more than `MAX_LENGTH_RATIO` times the
    other's, and they differ (equal ones are program text or not translated).
    """
    first, second = len(source.split()), len(target.split())
    shorter, longer = min(first, second), max(first, second)
    return (
        shorter >= MIN_WORDS
        and longer <= MAX_WORDS
        and longer <= MAX_LENGTH_RATIO * shorter
        and source != target
    )


def split_of(page: str) -> str:
    """Return the split of all pairs of a page, by a hash of its path."""
    digest = hashlib.sha256(page.encode()).digest()
    percent = int.from_bytes(digest[:8], "big") % 100
    if percent < _HELD_OUT_PERCENT:
        return "valid"
    return "test" if percent < 2 * _HELD_OUT_PERCENT else "train"


def split_pairs(pages: Mapping[str, Sequence[Pair]]) -> dict[str, list[Pair]]:
    """Return the clean pairs of each split, in the order of the pages, each pair once in all.

    A pair that stands in several splits stays in the first of `SPLITS`, so that nothing of valid
    or test was seen in training.
    """
    found: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    for page in sorted(pages):
        found[split_of(page)] += [pair for pair in pages[page] if is_clean(*pair)]
    seen: set[Pair] = set()
    return {split: _unseen(found[split], seen) for split in SPLITS}


def _unseen(pairs: Iterable[Pair], seen: set[Pair]) -> list[Pair]:
    fresh = []
    for pair in pairs:
        if pair not in seen:
            seen.add(pair)
            fresh.append(pair)
    return fresh

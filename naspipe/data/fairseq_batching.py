"""fairseq's batches for its translation task: which sentences, in which order, padded how."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from naspipe.config.errors import ConfigError
from naspipe.data.dictionary import EOS, PADDING
from naspipe.data.ports import IntArray


_SEED_MASK = 0xFFFF_FFFF  # what numpy's generator takes


def batch_ends(lengths: IntArray, max_tokens: int, required_multiple: int = 1) -> list[int]:
    """Cut sentences of padded ``lengths``, in this order, into batches; return where each ends.

    A batch of n sentences of which the longest has m tokens counts n x m, at most ``max_tokens``.
    Its n is below ``required_multiple`` or a multiple of it. As fairseq does, a last batch whose
    n is not a multiple is left out.
    """
    _check(lengths, max_tokens, required_multiple)
    ends: list[int] = []
    start = 0  # the open batch is [start, end), what may still join it is [end, position]
    end = 0
    batch_longest = tail_longest = 0
    for position, length in enumerate(lengths.tolist()):
        tail_longest = max(tail_longest, length)
        sentences = position + 1 - start
        if sentences * max(batch_longest, tail_longest) > max_tokens:
            ends.append(end)
            start, batch_longest = end, 0
            if (position + 1 - start) * tail_longest > max_tokens:
                ends.append(position)
                start, tail_longest = position, length
            # What is left is a batch of its own even if it misses the multiple.
        elif sentences >= required_multiple and sentences % required_multiple:
            continue
        batch_longest = max(batch_longest, tail_longest)
        end, tail_longest = position + 1, 0
    if end > start:
        ends.append(end)
    if end < len(lengths):
        ends.append(len(lengths))
    return _without_odd_end(ends, required_multiple)


def _check(lengths: IntArray, max_tokens: int, required_multiple: int) -> None:
    if max_tokens < 1 or required_multiple < 1:
        raise ConfigError(
            f"max_tokens and required_multiple must be at least 1, got {max_tokens} and "
            f"{required_multiple}"
        )
    if not len(lengths):
        raise ConfigError("there is no sentence to make a batch of")
    longest = int(lengths.max())
    if longest > max_tokens:
        raise ConfigError(
            f"the longest sentence has {longest} tokens, more than a batch may have "
            f"(max_tokens={max_tokens}): set max_tokens to {longest} or more"
        )


def _without_odd_end(ends: list[int], required_multiple: int) -> list[int]:
    last = ends[-1] - (ends[-2] if len(ends) > 1 else 0)
    if required_multiple > 1 and last % required_multiple:
        ends = ends[:-1]
    if not ends:
        raise ConfigError(
            f"{last} sentences do not fill one batch of a multiple of {required_multiple}: set "
            f"required_multiple to 1"
        )
    return ends


def sentence_order(source_sizes: IntArray, target_sizes: IntArray, seed: int | None) -> IntArray:
    """Return the sentences by source size, then target size, ties permuted by ``seed``.

    None leaves ties in the file's order.
    """
    number = len(source_sizes)
    if seed is None:
        order = np.arange(number, dtype=np.int64)
    else:
        order = np.random.RandomState(seed & _SEED_MASK).permutation(number).astype(np.int64)
    order = order[np.argsort(target_sizes[order], kind="stable")]
    return order[np.argsort(source_sizes[order], kind="stable")]


class BatchPlanner:
    """Plans epochs of batches; a plan is a pure function of (seed, epoch)."""

    def __init__(
        self,
        source_sizes: IntArray,
        target_sizes: IntArray,
        max_tokens: int,
        required_multiple: int = 1,
        *,
        shuffle: bool = True,
    ) -> None:
        self._source_sizes = source_sizes
        self._target_sizes = target_sizes
        self._shuffle = shuffle
        # Permuting changes only the order of sentences whose two sizes are equal, so the sizes
        # met in order, and with them the places where batches end, are those of every epoch.
        order = sentence_order(source_sizes, target_sizes, None)
        lengths = np.maximum(source_sizes, target_sizes)[order]
        self._ends = batch_ends(lengths, max_tokens, required_multiple)

    @property
    def num_batches(self) -> int:
        """Batches of every epoch."""
        return len(self._ends)

    def plan(self, seed: int, epoch: int) -> list[IntArray]:
        """Return the epoch's batches (epochs count from 1, as in fairseq) of sentence indices."""
        key = seed + epoch if self._shuffle else None
        order = sentence_order(self._source_sizes, self._target_sizes, key)
        batches = np.split(order[: self._ends[-1]], self._ends[:-1])
        if key is None:
            return batches
        places = np.arange(len(batches))
        np.random.RandomState(key & _SEED_MASK).shuffle(places)
        return [batches[place] for place in places]


def collate(
    sources: Sequence[IntArray], targets: Sequence[IntArray]
) -> tuple[IntArray, IntArray, IntArray]:
    """Return padded (source, previous, target): longest source first, ties in the order given.

    (fairseq leaves the order of ties to an unstable sort, which no promise can rest on.)

    Sources are padded on the left, targets on the right; previous is the target with its end
    token moved to the front.
    """
    sizes = np.array([len(source) for source in sources], dtype=np.int64)
    rows = np.argsort(-sizes, kind="stable").tolist()
    widest = max(len(target) for target in targets)
    source = np.full((len(rows), int(sizes.max())), PADDING, dtype=np.int64)
    previous = np.full((len(rows), widest), PADDING, dtype=np.int64)
    target = np.full((len(rows), widest), PADDING, dtype=np.int64)
    for place, row in enumerate(rows):
        words = targets[row]
        source[place, source.shape[1] - len(sources[row]) :] = sources[row]
        target[place, : len(words)] = words
        previous[place, 0] = EOS
        previous[place, 1 : len(words)] = words[:-1]
    return source, previous, target

"""Batches of sentence pairs from a directory binarised by fairseq or naspipe.

Epochs are planned in the same way as in fairseq. :class:`MaskedWords` makes batches for masked
language models from the same files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from naspipe.config.errors import ConfigError, DataError
from naspipe.data.cache import file_record
from naspipe.data.fairseq import (
    EOS,
    PADDING,
    SPECIAL_SYMBOLS,
    open_tokens,
    read_dictionary,
)
from naspipe.data.images import IntArray, keyed_random

_SEED_MASK = 0xFFFF_FFFF  # what numpy's generator takes


def batch_ends(lengths: IntArray, max_tokens: int, required_multiple: int = 1) -> list[int]:
    """Cut sentences of padded ``lengths``, in this order, into batches; return the end of each.

    A batch of n sentences whose longest has m tokens counts n x m, at most ``max_tokens``. Its n is
    below ``required_multiple`` or a multiple of it. As in fairseq, a last batch whose n is not a
    multiple is omitted.
    """
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
    ends: list[int] = []
    start = 0  # the open batch is [start, end), candidates to join it are [end, position]
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
            # The rest is a separate batch even if it is not a multiple.
        elif sentences >= required_multiple and sentences % required_multiple:
            continue
        batch_longest = max(batch_longest, tail_longest)
        end, tail_longest = position + 1, 0
    if end > start:
        ends.append(end)
    if end < len(lengths):
        ends.append(len(lengths))
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
    """Return the sentences by source size, then target size, with ties permuted by ``seed``.

    None keeps ties in the order of the file.
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
        # Permuting changes only the order of sentences with two equal sizes, so the sequence of
        # sizes, and therefore the ends of batches, are the same in every epoch.
        order = sentence_order(source_sizes, target_sizes, None)
        lengths = np.maximum(source_sizes, target_sizes)[order]
        self._ends = batch_ends(lengths, max_tokens, required_multiple)

    @property
    def num_batches(self) -> int:
        return len(self._ends)

    def plan(self, seed: int, epoch: int) -> list[IntArray]:
        """Return the epoch's batches of sentence indices; epochs count from 1, as in fairseq."""
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
    """Return padded (source, previous, target): longest source first, ties in the given order.

    (fairseq uses an unstable sort, whose order of ties is not guaranteed.)

    Sources are padded on the left, targets on the right; previous is the target with its end token
    moved to the front.
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


_PLANS_KEPT = 4  # subnets in flight may be on both sides of an epoch's end


class TranslationData:
    """The batch of a sequence ID, as a pure function of (seed, sequence ID).

    Epochs follow each other: with n batches per epoch, sequence ID s is batch s mod n of epoch 1 +
    s // n. Train is shuffled as in fairseq; the other splits have a fixed order.
    """

    def __init__(
        self,
        directory: Path,
        max_tokens: int,
        split: str = "train",
        required_multiple: int = 1,
        *,
        record: dict[str, Any] | None = None,
    ) -> None:
        source, target = find_language_pair(directory, split)
        names = [f"{split}.{source}-{target}.{language}" for language in (source, target)]
        dictionaries = [directory / f"dict.{language}.txt" for language in (source, target)]
        symbols = [read_dictionary(path) for path in dictionaries]
        sizes = list(map(len, symbols))
        self.target_symbols = symbols[1]
        """The symbol of each token of the target."""
        self._source, self._target = (open_tokens(directory / name) for name in names)
        for tokens, size in zip((self._source, self._target), sizes, strict=True):
            tokens.check(size, EOS)
        if len(self._source) != len(self._target):
            raise DataError(
                f"{directory}: {self._source.prefix.name} has {len(self._source)} sentences, "
                f"{self._target.prefix.name} has {len(self._target)}: they are not one another's "
                f"translation"
            )
        if not len(self._source):
            raise DataError(f"{self._source.prefix}.idx: expected sentences, found none")
        self.info: dict[str, int] = {"vocabulary": max(sizes), "padding": PADDING}
        if record is None:
            files = [directory / f"{name}{ending}" for name in names for ending in (".bin", ".idx")]
            files += dictionaries
            record = {
                "name": "fairseq",
                "source": "files binarised by fairseq",
                "version": "unknown",
                "counts": {
                    "pairs": len(self),
                    "source_vocabulary": sizes[0],
                    "target_vocabulary": sizes[1],
                },
                "sha256": {path.name: file_record(path)["sha256"] for path in files},
            }
        self.record: dict[str, Any] = {**record, "split": split, "max_tokens": max_tokens}
        self._planner = BatchPlanner(
            self._source.sizes,
            self._target.sizes,
            max_tokens,
            required_multiple,
            shuffle=split == "train",
        )
        self.batches_per_epoch = self._planner.num_batches
        self._plans: dict[tuple[int, int], list[IntArray]] = {}

    def __len__(self) -> int:
        return len(self._source)

    def __call__(self, seed: int, sequence_id: int) -> dict[str, torch.Tensor]:
        """Return new int64 tensors source (B, S), previous (B, T) and target (B, T)."""
        if sequence_id < 0:
            raise ConfigError(f"sequence IDs count from 0, got {sequence_id}")
        epoch, place = divmod(sequence_id, self.batches_per_epoch)
        rows = self._plan(seed, epoch + 1)[place].tolist()
        source, previous, target = collate(
            [self._source[row] for row in rows], [self._target[row] for row in rows]
        )
        named = {"source": source, "previous": previous, "target": target}
        return {name: torch.from_numpy(array) for name, array in named.items()}

    def _plan(self, seed: int, epoch: int) -> list[IntArray]:
        if (seed, epoch) not in self._plans:
            while len(self._plans) >= _PLANS_KEPT:
                del self._plans[next(iter(self._plans))]
            self._plans[seed, epoch] = self._planner.plan(seed, epoch)
        return self._plans[seed, epoch]


def find_language_pair(directory: Path, split: str) -> tuple[str, str]:
    """Return (source, target) of the only language pair in ``directory`` for ``split``."""
    if not directory.is_dir():
        raise DataError(f"{directory}: expected a directory of fairseq-preprocess's, found none")
    pairs = set()
    for path in directory.glob(f"{split}.*-*.*.idx"):
        name = path.name.removeprefix(f"{split}.").removesuffix(".idx")
        languages, _, language = name.rpartition(".")
        source, _, target = languages.partition("-")
        if source and target and language in (source, target):
            pairs.add((source, target))
    if len(pairs) != 1:
        found = ", ".join(f"{source}-{target}" for source, target in sorted(pairs)) or "none"
        raise DataError(
            f"{directory}: expected the files of one language pair named {split}.SRC-TGT.SRC.idx "
            f"and so on, found {found}"
        )
    return pairs.pop()


PREFIX = "masked:"
"""Prefix of the names of these data sets, followed by the name of translation data."""

CHOSEN = 0.15
"""Fraction of a batch's words that must be predicted (Devlin et al. 2019, section 3.1)."""

MASKED, REPLACED = 0.8, 0.1
"""Fractions of the chosen words replaced by the mask and by a random word. The rest is kept."""

LONGEST = 512
"""Maximum number of tokens kept per sentence, from its start."""

_FIRST_WORD = len(SPECIAL_SYMBOLS)


class MaskedWords:
    """The batch of a sequence ID, as a pure function of (seed, sequence ID).

    Its sentences are those of the source language in the translation data's batch of the same ID.
    In train, words are drawn separately for each ID; in the other splits the masks of each sentence
    are fixed. The mask is one more token after the vocabulary. Ends of sentences and unknown words
    are never chosen.
    """

    def __init__(self, sentences: TranslationData, split: str = "train") -> None:
        self._sentences = sentences
        self._is_drawn_anew = split == "train"
        self._mask = sentences.info["vocabulary"]
        self.info = {"vocabulary": self._mask + 1, "padding": PADDING}
        masking = {"chosen": CHOSEN, "masked": MASKED, "replaced": REPLACED, "longest": LONGEST}
        name = PREFIX + sentences.record["name"]
        self.record: dict[str, Any] = {**sentences.record, "name": name, "masking": masking}
        self.batches_per_epoch = sentences.batches_per_epoch

    def __len__(self) -> int:
        return len(self._sentences)

    def __call__(self, seed: int, sequence_id: int) -> dict[str, torch.Tensor]:
        """Return new int64 tensors input and target, both (B, S) and padded on the right.

        The target is the original word at each chosen place, and padding at all others.
        """
        batch = _padded_behind(self._sentences(seed, sequence_id)["source"].numpy())
        targets = np.full_like(batch, PADDING)
        words, target = batch.reshape(-1), targets.reshape(-1)
        place = sequence_id % self.batches_per_epoch
        draw = keyed_random(seed, sequence_id) if self._is_drawn_anew else keyed_random(place)
        places = np.flatnonzero(words >= _FIRST_WORD)
        if not len(places):  # choose at least one word, because a loss is a mean over them
            places = np.flatnonzero(words != PADDING)
        chosen = draw.permutation(places)[: max(1, round(CHOSEN * len(places)))]
        target[chosen] = words[chosen]
        fate = draw.random_sample(len(chosen))
        words[chosen[fate < MASKED]] = self._mask
        replaced = chosen[(fate >= MASKED) & (fate < MASKED + REPLACED)]
        words[replaced] = draw.randint(_FIRST_WORD, self._mask, len(replaced))
        return {"input": torch.from_numpy(batch), "target": torch.from_numpy(targets)}


def _padded_behind(tokens: IntArray) -> IntArray:
    """Move the padding of sentences from the left to the right, and cut them to `LONGEST`."""
    lengths = (tokens != PADDING).sum(1)
    words = np.full((len(tokens), min(LONGEST, int(lengths.max()))), PADDING, np.int64)
    for row, length in enumerate(lengths.tolist()):
        kept = tokens[row, tokens.shape[1] - length :][:LONGEST]
        words[row, : len(kept)] = kept
    return words

"""Sentences some of whose words are masked and to be guessed, as BERT is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from naspipe.data.dictionary import PADDING, SPECIAL_SYMBOLS
from naspipe.data.images import keyed_random
from naspipe.data.ports import IntArray
from naspipe.data.translation import TranslationData

PREFIX = "masked:"
"""What the names of these data sets begin with; the name of translation data follows."""

CHOSEN = 0.15
"""Of a batch's words, to be guessed (Devlin et al. 2019, section 3.1)."""

MASKED, REPLACED = 0.8, 0.1
"""Of the chosen words: those that the mask stands for, and those that become any word. The others
stay as they are."""

LONGEST = 512
"""Tokens of a sentence that are kept, the first ones."""

_FIRST_WORD = len(SPECIAL_SYMBOLS)


class MaskedWords:
    """The batch of a sequence ID, as a pure function of (seed, sequence ID).

    Its sentences are those of the source language in the batch that the translation data have for
    the same ID. Words are drawn anew for each ID of train; in the other splits each sentence is
    masked once and for all. The mask is one more token behind the vocabulary. Ends of sentences
    and unknown words are never chosen.
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
        """Return the number of sentences."""
        return len(self._sentences)

    def __call__(self, seed: int, sequence_id: int) -> dict[str, torch.Tensor]:
        """Return fresh int64 tensors input and target, both (B, S) and padded on the right.

        The target is the word that stood at each chosen place, and padding at all others.
        """
        words = _padded_behind(self._sentences(seed, sequence_id)["source"].numpy())
        target = np.full_like(words, PADDING)
        place = sequence_id % self.batches_per_epoch
        draw = keyed_random(seed, sequence_id) if self._is_drawn_anew else keyed_random(place)
        self._choose(words.reshape(-1), target.reshape(-1), draw)
        return {"input": torch.from_numpy(words), "target": torch.from_numpy(target)}

    def _choose(self, words: IntArray, target: IntArray, draw: np.random.RandomState) -> None:
        """Move words of the batch to the target; at least one, as a loss is their mean."""
        places = np.flatnonzero(words >= _FIRST_WORD)
        if not len(places):
            places = np.flatnonzero(words != PADDING)
        chosen = draw.permutation(places)[: max(1, round(CHOSEN * len(places)))]
        target[chosen] = words[chosen]
        fate = draw.random_sample(len(chosen))
        words[chosen[fate < MASKED]] = self._mask
        replaced = chosen[(fate >= MASKED) & (fate < MASKED + REPLACED)]
        words[replaced] = draw.randint(_FIRST_WORD, self._mask, len(replaced))


def _padded_behind(tokens: IntArray) -> IntArray:
    """Sentences that were padded in front, padded behind, and cut."""
    lengths = (tokens != PADDING).sum(1)
    words = np.full((len(tokens), min(LONGEST, int(lengths.max()))), PADDING, np.int64)
    for row, length in enumerate(lengths.tolist()):
        kept = tokens[row, tokens.shape[1] - length :][:LONGEST]
        words[row, : len(kept)] = kept
    return words

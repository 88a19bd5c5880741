"""The blocks of BERT-base, BERT-mini and DistilBERT.

An embedding, 12 encoders and a head that predicts masked words, as in Devlin et al. 2019, with
three differences. There is no next-sentence task, and therefore neither segments nor a pooler. The
head's decoder has its own weight, because a parameter shared by two layers is not supported. The
optimizer decays every parameter, including biases and norms. A scale changes widths, never blocks.

DistilBERT has half of the encoders (Sanh et al. 2019, section 3). Its head also returns its input,
for the loss of hidden states. BERT-mini has 4 encoders of 256 features (Turc et al. 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from naspipe.config.blocks import Block, Shared
from naspipe.config.rules import Rule
from search_spaces.common import Defaults

NAMES = ("bert-base", "distil-bert", "bert-mini")

ENCODERS = {"bert-base": 12, "distil-bert": 6, "bert-mini": 4}

WIDTHS = {"tiny": 64, "small": 256, "paper": 768}
MINI_WIDTHS = {"tiny": 64, "small": 128, "paper": 256}

HEADS = {"tiny": 4, "small": 8, "paper": 12}
"""Attention heads of each encoder; BERT-mini has 4."""

PADDING = 1
"""The padding token of the data sets that come with naspipe."""

INFO = ("vocabulary", "padding")
"""Values that the data must state."""

SHARED_RULES: dict[str, Rule] = {}


def chain(
    name: str, scale: str, info: Mapping[str, int], rule: Mapping[str, Rule]
) -> list[Block | Shared]:
    """Return the blocks of a network; there is nothing to choose."""
    vocabulary = info["vocabulary"]
    width, heads = sizes(name, scale)
    encoder = partial(_encoder, width, heads)
    return [
        Block([partial(_embedding, vocabulary, width, info["padding"])]),
        *(Block([encoder], kind="encoder") for _ in range(ENCODERS[name])),
        Block([partial(_head_with_hidden if name == "distil-bert" else _head, width, vocabulary)]),
    ]


def sizes(name: str, scale: str) -> tuple[int, int]:
    """Return the number of features per token, and the number of heads."""
    if name == "bert-mini":
        return MINI_WIDTHS[scale], 4
    return WIDTHS[scale], HEADS[scale]


def cuts(name: str) -> tuple[int, ...]:
    """Return where it is cut for blockwise distillation: before every encoder but the first."""
    return tuple(range(2, ENCODERS[name] + 1))


def defaults(name: str, scale: str) -> Defaults:
    return Defaults(
        data="masked:en-de-2k" if scale == "tiny" else "masked:en-de-8k",
        max_tokens={"tiny": 600, "small": 4096, "paper": 12288}[scale],
        optimizer="AdamW",
        lr={"tiny": 1e-3, "small": 3e-4, "paper": 1e-4}[scale],
        loss=_three_terms if name == "distil-bert" else _loss,
    )


# Factories import torch's modules only when they make one.


def _embedding(vocabulary: int, width: int, padding: int) -> Any:
    from search_spaces.networks.bert.layers import WordEmbedding

    return WordEmbedding(vocabulary, width, padding)


def _encoder(width: int, heads: int) -> Any:
    from search_spaces.networks.bert.layers import Encoder

    return Encoder(width, heads)


def _head(width: int, vocabulary: int) -> Any:
    from search_spaces.networks.bert.layers import Head

    return Head(width, vocabulary)


def _head_with_hidden(width: int, vocabulary: int) -> Any:
    from search_spaces.networks.bert.layers import HeadWithHidden

    return HeadWithHidden(width, vocabulary)


def _three_terms() -> Any:
    from naspipe.losses import DistilBert

    return DistilBert(ignore_index=PADDING)


def _loss() -> Any:
    from search_spaces.nlp.shared_layers import TokenLoss

    return TokenLoss(PADDING)

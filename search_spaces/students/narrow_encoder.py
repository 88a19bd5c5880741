"""An encoder with half of BERT's heads and a narrower hidden layer, distilled encoder by encoder.

Each encoder learns its teacher's hidden states. A hidden layer has one or two times the width; the
teacher's has four times the width. The embedding and the head have the teacher's form.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from naspipe.config.blocks import Block, Shared
from search_spaces.networks.bert.spec import ENCODERS, PADDING, sizes
from search_spaces.students.kind import StudentKind

TIMES = (1, 2)
"""Ratio of the hidden layer's width to the encoder's, for each candidate."""


def chains(teacher: str, scale: str, info: Mapping[str, int]) -> list[list[Block | Shared]]:
    width, heads = sizes(teacher, scale)
    choice = Block([partial(_encoder, width, heads // 2, each) for each in TIMES], kind="encoder")
    blocks: list[list[Block | Shared]] = [[choice] for _ in range(ENCODERS[teacher])]
    embedding = partial(_embedding, info["vocabulary"], width, info["padding"])
    blocks[0].insert(0, Shared("embedding", embedding))
    blocks[-1].append(Shared("head", partial(_head, width, info["vocabulary"])))
    return blocks


# Factories import torch's modules only when they make one.


def _embedding(vocabulary: int, width: int, padding: int) -> Any:
    from search_spaces.networks.bert.layers import WordEmbedding

    return WordEmbedding(vocabulary, width, padding)


def _encoder(width: int, heads: int, times: int) -> Any:
    from search_spaces.networks.bert.layers import Encoder

    return Encoder(width, heads, times)


def _head(width: int, vocabulary: int) -> Any:
    from search_spaces.networks.bert.layers import Head

    return Head(width, vocabulary)


def _hidden_states() -> Any:
    from naspipe.losses import HiddenStates

    return HiddenStates()


def _words() -> Any:
    from search_spaces.nlp.shared_layers import TokenLoss

    return TokenLoss(PADDING)


KIND = StudentKind(
    teachers=("bert-mini", "bert-base"),
    recipe="dna",
    chains=chains,
    loss=_hidden_states,
    last_loss=_words,
)

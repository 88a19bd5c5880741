"""The blocks and candidates of the spaces nlp.c0 to nlp.c3.

A candidate is one of 24 operations with one of up to 4 activations. Candidates are numbered
activation by activation, so candidate k of a smaller space is candidate k of a larger one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from naspipe.config.blocks import Block, Shared
from naspipe.config.rules import Exact, Lag, Rule
from search_spaces.common import Defaults
from search_spaces.nlp.choices import CANDIDATES, DECODER_BLOCKS, ENCODER_BLOCKS, Operation

PADDING = 1
"""The padding token of the data sets that come with naspipe."""

WIDTHS = {"tiny": 64, "small": 256, "paper": 1024}

INFO = ("vocabulary", "padding")
"""Values that the data must state."""

SHARED_RULES: dict[str, Rule] = {
    "source_embedding": Lag(8),
    "target_embedding": Lag(8),
    "final_norm": Exact(),
    "head": Exact(),
}


def chain(
    name: str, scale: str, info: Mapping[str, int], rule: Mapping[str, Rule]
) -> list[Block | Shared]:
    """Return the blocks of a space, with a rule for each shared layer."""
    vocabulary, padding = info["vocabulary"], info["padding"]
    width = WIDTHS[scale]
    listed = CANDIDATES.of(name)
    encoder = [partial(_encoder, width, *candidate) for candidate in listed]
    decoder = [partial(_decoder, width, *candidate) for candidate in listed]
    return [
        Shared(
            "source_embedding",
            partial(_source_embedding, vocabulary, width, padding),
            rule["source_embedding"],
            ("source",),
        ),
        *(Block(encoder, kind="encoder") for _ in range(ENCODER_BLOCKS)),
        Shared(
            "target_embedding",
            partial(_target_embedding, vocabulary, width, padding),
            rule["target_embedding"],
            ("previous",),
        ),
        *(Block(decoder, kind="decoder") for _ in range(DECODER_BLOCKS)),
        Shared("final_norm", partial(_final_norm, width), rule["final_norm"]),
        Shared("head", partial(_head, width, vocabulary), rule["head"]),
    ]


def defaults(name: str, scale: str) -> Defaults:
    return Defaults(
        data={"tiny": "en-de-2k", "small": "en-de-8k", "paper": "en-de-8k"}[scale],
        max_tokens={"tiny": 600, "small": 4096, "paper": 12288}[scale],
        optimizer="Adam",
        lr={"tiny": 3e-3, "small": 1e-3, "paper": 3e-4}[scale],
        loss=_loss,
    )


# Factories import torch's modules only when they make one.


def _encoder(width: int, operation: Operation, activation: str) -> Any:
    from search_spaces.nlp.layers import EncoderCandidate

    return EncoderCandidate(width, operation, activation)


def _decoder(width: int, operation: Operation, activation: str) -> Any:
    from search_spaces.nlp.layers import DecoderCandidate

    return DecoderCandidate(width, operation, activation)


def _source_embedding(vocabulary: int, width: int, padding: int) -> Any:
    from search_spaces.nlp.shared_layers import SourceEmbedding

    return SourceEmbedding(vocabulary, width, padding)


def _target_embedding(vocabulary: int, width: int, padding: int) -> Any:
    from search_spaces.nlp.shared_layers import TargetEmbedding

    return TargetEmbedding(vocabulary, width, padding)


def _final_norm(width: int) -> Any:
    from search_spaces.nlp.shared_layers import FinalNorm

    return FinalNorm(width)


def _head(width: int, vocabulary: int) -> Any:
    from search_spaces.nlp.shared_layers import Head

    return Head(width, vocabulary)


def _loss() -> Any:
    from search_spaces.nlp.shared_layers import TokenLoss

    return TokenLoss(PADDING)

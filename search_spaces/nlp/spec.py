"""The spaces nlp.c0 to nlp.c3: what their blocks and candidates are.

A candidate is one of 24 operations with one of up to 4 activations. Candidates are numbered
activation by activation, so candidate k of a smaller space is candidate k of a larger one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from naspipe.core.rules import Exact, Lag, Rule
from naspipe.core.space import Block, Shared, Space
from search_spaces.common import Defaults, require, shared_rules

ENCODER_BLOCKS = 24
DECODER_BLOCKS = 24

ACTIVATIONS = ("none", "relu", "swish", "leaky relu")
"""Applied to what an operation adds to its input."""

VARIANT_COUNTS = {"nlp.c0": 4, "nlp.c1": 3, "nlp.c2": 2, "nlp.c3": 1}
"""How many of the activations each space has."""

PADDING = 1
"""The token that fills sentences up, in the data sets that come with naspipe."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of layer; prints as ``light 7x1, 4 heads``."""

    kind: str
    """``conv``, ``separable``, ``light``, ``attention`` or ``glu``."""
    kernel: int = 1
    """Tokens that a convolution sees."""
    heads: int = 1
    """Groups of channels with a kernel or an attention of their own."""

    def __str__(self) -> str:
        sized = f" {self.kernel}x1" if self.kind in ("conv", "separable", "light") else ""
        headed = f", {self.heads} heads" if self.kind in ("light", "attention") else ""
        return f"{self.kind}{sized}{headed}"


OPERATIONS = (
    *(Operation("conv", kernel) for kernel in (1, 3, 5)),
    *(Operation("separable", kernel) for kernel in (3, 5, 7, 9, 11)),
    *(Operation("light", kernel, heads) for kernel in (3, 5, 7, 15) for heads in (1, 4, 16)),
    *(Operation("attention", heads=heads) for heads in (4, 8, 16)),
    Operation("glu"),
)

WIDTHS = {"tiny": 64, "small": 256, "paper": 1024}

_SHARED_RULES: dict[str, Rule] = {
    "source_embedding": Lag(8),
    "target_embedding": Lag(8),
    "final_norm": Exact(),
    "head": Exact(),
}


def candidate_names(name: str) -> tuple[str, ...]:
    """What each candidate of a block is, in words."""
    return tuple(
        f"{operation}, {activation}" for operation, activation in _candidates(VARIANT_COUNTS[name])
    )


def build(
    name: str, scale: str, info: Mapping[str, int], rules: Mapping[str, Rule] | None = None
) -> Space:
    """The space ``name`` (see :func:`search_spaces.build`)."""
    vocabulary, padding = require(name, info, ("vocabulary", "padding"))
    rule = shared_rules(name, _SHARED_RULES, rules)
    width = WIDTHS[scale]
    listed = _candidates(VARIANT_COUNTS[name])
    encoder = [partial(_encoder, width, *candidate) for candidate in listed]
    decoder = [partial(_decoder, width, *candidate) for candidate in listed]
    return Space(
        name,
        [
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
        ],
    )


def defaults(scale: str) -> Defaults:
    """What a run uses unless its user says otherwise."""
    return Defaults(
        data={"tiny": "en-de-2k", "small": "en-de-8k", "paper": "en-de-8k"}[scale],
        max_tokens={"tiny": 600, "small": 4096, "paper": 12288}[scale],
        optimizer="Adam",
        lr={"tiny": 3e-3, "small": 1e-3, "paper": 3e-4}[scale],
        loss=_loss,
    )


def _candidates(num_variants: int) -> list[tuple[Operation, str]]:
    return [
        (operation, activation)
        for activation in ACTIVATIONS[:num_variants]
        for operation in OPERATIONS
    ]


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

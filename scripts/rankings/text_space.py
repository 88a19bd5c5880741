"""A translation space that has something to find: its candidates differ by kind and by presence.

Three decisions in the encoder, four in the decoder. Some subnets have no attention to the source,
and cannot translate; others have no feed-forward layer. Widths are all alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import nn  # noqa: E402

import naspipe as npp  # noqa: E402
from search_spaces.nlp.layers import (  # noqa: E402
    CrossAttention,
    LightConvolution,
    SelfAttention,
)
from search_spaces.nlp.shared_layers import (  # noqa: E402
    FinalNorm,
    Head,
    SourceEmbedding,
    TargetEmbedding,
)

WIDTH, HEADS, KERNEL = 64, 4, 5
ENCODER_BLOCKS, DECODER_BLOCKS = 3, 4

ENCODER = ("none", "attention", "convolution", "feed-forward")
DECODER = ("none", "attention", "convolution", "feed-forward", "source")
"""``source`` is attention to the encoder's output."""


class Residual(nn.Module):
    """A kind of layer on normed tokens, added to them; or nothing."""

    def __init__(self, kind: str, causal: bool) -> None:
        super().__init__()
        self.kind = kind
        self.norm = nn.LayerNorm(WIDTH) if kind != "none" else None
        if kind == "attention":
            self.inner = SelfAttention(WIDTH, HEADS, causal)
        elif kind == "convolution":
            self.inner = LightConvolution(WIDTH, KERNEL, HEADS, causal)
        elif kind == "source":
            self.inner = CrossAttention(WIDTH, HEADS)
        elif kind == "feed-forward":
            layers = nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)
            self.inner = nn.Sequential(*layers)

    def added(self, x: torch.Tensor, *of: torch.Tensor | None) -> torch.Tensor:
        """``x`` and what the layer makes of it and of what else it reads."""
        return x if self.norm is None else x + self.inner(self.norm(x), *of)


class Encoding(Residual):
    """On the source's tokens."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens, and the mask of padding as it came."""
        return self.added(x, *([] if self.kind == "feed-forward" else [mask])), mask


class Decoding(Residual):
    """On the target's tokens so far."""

    def forward(
        self, y: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The tokens; memory and mask as they came."""
        of = {"source": (memory, mask), "feed-forward": ()}.get(self.kind, (None,))
        return self.added(y, *of), memory, mask


def text_space(vocabulary: int, padding: int) -> npp.Space:
    """The space; all shared layers are read as the plain loop reads them."""
    embedding = (vocabulary, WIDTH, padding)
    return npp.Space(
        "presence",
        [
            npp.Shared("source", partial(SourceEmbedding, *embedding), fields=("source",)),
            *blocks(Encoding, ENCODER, False, ENCODER_BLOCKS),
            npp.Shared("target", partial(TargetEmbedding, *embedding), fields=("previous",)),
            *blocks(Decoding, DECODER, True, DECODER_BLOCKS),
            npp.Shared("norm", partial(FinalNorm, WIDTH)),
            npp.Shared("head", partial(Head, WIDTH, vocabulary)),
        ],
    )


def blocks(
    kind: Callable[[str, bool], nn.Module], names: tuple[str, ...], causal: bool, count: int
) -> list[npp.Block]:
    """So many of the same candidates."""
    return [npp.Block([partial(kind, name, causal) for name in names]) for _ in range(count)]


def kinds_of(choices: tuple[int, ...]) -> list[str]:
    """A subnet in words."""
    return [
        (ENCODER if place < ENCODER_BLOCKS else DECODER)[choice]
        for place, choice in enumerate(choices)
    ]

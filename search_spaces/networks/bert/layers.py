"""BERT's modules; tokens are (batch, token), vectors (batch, token, width), masks True at padding.

Attention consists of plain products: the same kernels, in the same order, on every device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

POSITIONS = 512
"""Maximum sentence length for which there are position embeddings."""

DROPOUT = 0.1

_STD = 0.02
_EPSILON = 1e-12


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=_STD)
    nn.init.zeros_(layer.bias)
    return layer


class WordEmbedding(nn.Module):
    """Word and position embeddings, normed; sentences are padded at the end."""

    def __init__(self, vocabulary: int, width: int, padding: int) -> None:
        super().__init__()
        self.padding = padding
        self.words = nn.Embedding(vocabulary, width, padding_idx=padding)
        self.positions = nn.Parameter(torch.empty(POSITIONS, width))
        self.norm = nn.LayerNorm(width, _EPSILON)
        self.dropout = nn.Dropout(DROPOUT)
        nn.init.normal_(self.positions, std=_STD)
        with torch.no_grad():
            self.words.weight.normal_(std=_STD)
            self.words.weight[padding] = 0.0

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors and the padding mask."""
        vectors = self.words(words) + self.positions[: words.size(1)]
        return self.dropout(self.norm(vectors)), words.eq(self.padding)

    def extra_repr(self) -> str:
        return f"padding={self.padding}"


class SelfAttention(nn.Module):
    """Multi-head attention to every token that is not padding."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projections = _linear(width, 3 * width)
        self.dropout = nn.Dropout(DROPOUT)
        self.output = _linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Mix the tokens of each sentence."""
        query, key, value = self._by_head(self.projections(x)).unbind(0)
        scores = (query * query.size(-1) ** -0.5) @ key.transpose(2, 3)
        # The value is far from infinity, so that a row with only padding gets equal weights, not
        # NaN.
        lowest = torch.finfo(scores.dtype).min / 2
        weights = scores.masked_fill(mask[:, None, None, :], lowest).softmax(-1)
        mixed = self.dropout(weights).to(value.dtype) @ value
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out

    def _by_head(self, projected: Tensor) -> Tensor:
        """Return queries, keys and values of shape (3, batch, head, token, width / heads)."""
        batch, length, _ = projected.shape
        return projected.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)

    def extra_repr(self) -> str:
        return f"heads={self.heads}"


class Encoder(nn.Module):
    """Attention, then a hidden layer ``times`` as wide; a norm after each sum."""

    def __init__(self, width: int, heads: int, times: int = 4) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.attention_norm = nn.LayerNorm(width, _EPSILON)
        self.hidden = _linear(width, times * width)
        self.output = _linear(times * width, width)
        self.norm = nn.LayerNorm(width, _EPSILON)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the changed tokens, and the unchanged mask."""
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        x = self.norm(x + self.dropout(self.output(F.gelu(self.hidden(x)))))
        return x, mask


class Head(nn.Module):
    """Scores of every word of the vocabulary at every token; its decoder is not tied."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.dense = _linear(width, width)
        self.norm = nn.LayerNorm(width, _EPSILON)
        self.decoder = _linear(width, vocabulary)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return (batch, token, vocabulary), without the mask."""
        out: Tensor = self.decoder(self.norm(F.gelu(self.dense(x))))
        return out


class HeadWithHidden(Head):
    """The head of a network that also learns hidden states from a teacher."""

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return (batch, token, vocabulary), and the unchanged input (batch, token, width)."""
        return super().forward(x, mask), x

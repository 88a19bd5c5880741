"""The shared layers of a translation space: embeddings, final norm, head; and the loss."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.nlp.layers import linear


def _sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """Return (length, width): sines, then cosines, of wavelengths from 2 pi to 20,000 pi tokens."""
    steps = torch.arange(0, width, 2, device=device, dtype=torch.float32)
    angles = torch.arange(length, device=device, dtype=torch.float32).unsqueeze(1) * torch.exp(
        steps * (-math.log(10_000.0) / width)
    )
    return torch.cat([angles.sin(), angles.cos()], -1)


class _Embedding(nn.Module):
    """Token vectors of about unit size per channel, plus positions."""

    def __init__(self, vocabulary: int, width: int, padding: int) -> None:
        super().__init__()
        self.padding = padding
        self.scale = width**0.5
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=padding)
        with torch.no_grad():
            self.tokens.weight.normal_(std=width**-0.5)
            self.tokens.weight[padding] = 0.0

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        vectors: Tensor = self.tokens(tokens) * self.scale
        return vectors + positions.to(vectors.dtype)

    def extra_repr(self) -> str:
        return f"padding={self.padding}"


class SourceEmbedding(_Embedding):
    """Embeds the source, padded on the left; positions count from its first real token."""

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors and the padding mask."""
        mask = source.eq(self.padding)
        length = source.size(1)
        place = torch.arange(length, device=source.device) - mask.sum(1, keepdim=True)
        table = _sinusoids(length, self.tokens.embedding_dim, source.device)
        return self.embed(source, table[place.clamp_min(0)]), mask


class TargetEmbedding(_Embedding):
    """Embeds the target's previous tokens, padded on the right."""

    def forward(
        self, memory: Tensor, mask: Tensor, previous: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the vectors, and the unchanged memory and mask."""
        table = _sinusoids(previous.size(1), self.tokens.embedding_dim, previous.device)
        return self.embed(previous, table), memory, mask


class FinalNorm(nn.Module):
    """Norm of the decoder's output; the memory is dropped here."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, y: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Return only the normed tokens."""
        out: Tensor = self.norm(y)
        return out


class Head(nn.Module):
    """Scores of every word of the vocabulary, nearly equal at the start."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.linear = linear(width, vocabulary, gain=0.1)

    def forward(self, y: Tensor) -> Tensor:
        """Return (batch, token, vocabulary)."""
        out: Tensor = self.linear(y)
        return out


class TokenLoss(nn.Module):
    """Mean cross entropy over the target's tokens that are not padding."""

    def __init__(self, padding: int, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.padding = padding
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Compare (batch, token, vocabulary) with (batch, token).

        The tensors are flattened, because the loss over more dimensions has no deterministic CUDA
        kernel.
        """
        return F.cross_entropy(
            logits.flatten(0, 1),
            target.flatten(),
            ignore_index=self.padding,
            label_smoothing=self.label_smoothing,
        )

    def distill(self, logits: Tensor, taught: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross entropy against another subnet's scores, over the same tokens."""
        found = F.log_softmax(logits.flatten(0, 1), -1)
        expected = taught.flatten(0, 1).softmax(-1)
        is_word = (target.flatten() != self.padding).to(found.dtype)
        return -((expected * found).sum(-1) * is_word).sum() / is_word.sum()

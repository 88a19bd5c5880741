"""Self-attention of many heads and widths."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from naspipe.elastic.projections import Linear
from naspipe.elastic.slices import chosen, named


class Attention(nn.Module):
    """The first heads of a self-attention, of inputs ``[batch, length, features]``.

    Args:
        features: the most of input and output.
        num_heads: the most.
        head_size: of each head; it does not change.
        inputs: the setting that is the size of input and output; None where it is always the most.
        heads: the setting that is the number of heads.
        causal: whether a place sees none behind it.
    """

    def __init__(
        self,
        features: int,
        num_heads: int,
        head_size: int,
        *,
        inputs: str | None = None,
        heads: str | None = None,
        causal: bool = False,
    ) -> None:
        super().__init__()
        size = num_heads * head_size
        self.features, self.num_heads, self.head_size = features, num_heads, head_size
        self.inputs, self.heads, self.causal = inputs, heads, causal
        self.takes = named(inputs, heads)
        self.query, self.key, self.value = (
            Linear(features, size, inputs="inputs", outputs="size") for _ in range(3)
        )
        self.output = Linear(size, features, inputs="size", outputs="inputs")

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Of a number of heads, the first."""
        batch, length, width = input.shape
        heads = chosen(self.heads, settings, self.num_heads)
        shape = (batch, length, heads, self.head_size)
        query, key, value = (
            part(input, size=heads * self.head_size, inputs=width).view(shape).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) / self.head_size**0.5
        if self.causal:
            later = torch.ones(length, length, dtype=torch.bool, device=input.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, -1)
        found: torch.Tensor = self.output(mixed, inputs=width)
        return found

    def cut(self, **settings: Any) -> Attention:
        """One of fixed sizes."""
        heads = chosen(self.heads, settings, self.num_heads)
        width = chosen(self.inputs, settings, self.features)
        found = Attention(width, heads, self.head_size, causal=self.causal)
        for name in ("query", "key", "value", "output"):
            part = getattr(self, name).cut(inputs=width, size=heads * self.head_size)
            getattr(found, name).load_state_dict(part.state_dict())
        return found.to(self.output.weight.device).train(self.training)

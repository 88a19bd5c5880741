"""Linear layers and embeddings of many widths."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from naspipe.elastic.slices import chosen, fill, named


class Linear(nn.Linear):
    """The first rows of a Linear's weight, and as many columns as the input has.

    Args:
        in_features: the most.
        out_features: the most.
        bias: whether there is one.
        inputs: the setting that is the input's size; None where that is always ``in_features``.
        outputs: the setting that is the output's.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        inputs: str | None = None,
        outputs: str | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.inputs, self.outputs = inputs, outputs
        self.takes = named(inputs, outputs)

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Of a width, the first outputs."""
        size = chosen(self.outputs, settings, self.out_features)
        bias = None if self.bias is None else self.bias[:size]
        return functional.linear(input, self.weight[:size, : input.shape[-1]], bias)

    def cut(self, **settings: Any) -> nn.Linear:
        """The plain layer of one setting."""
        columns = chosen(self.inputs, settings, self.in_features)
        rows = chosen(self.outputs, settings, self.out_features)
        device = self.weight.device
        found = nn.Linear(columns, rows, self.bias is not None, device, self.weight.dtype)
        bias = None if self.bias is None else self.bias[:rows]
        fill(found, weight=self.weight[:rows, :columns], bias=bias)
        return found


class Embedding(nn.Embedding):
    """The first columns of an Embedding's weight.

    Args:
        num_embeddings: how many there are.
        embedding_dim: the most features.
        outputs: the setting that is the output's size; None where that is always the most.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, *, outputs: str | None = None
    ) -> None:
        super().__init__(num_embeddings, embedding_dim)
        self.outputs, self.takes = outputs, named(outputs)

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Of a width, the first features."""
        size = chosen(self.outputs, settings, self.embedding_dim)
        return functional.embedding(input, self.weight[:, :size])

    def cut(self, **settings: Any) -> nn.Embedding:
        """The plain layer of one setting."""
        size = chosen(self.outputs, settings, self.embedding_dim)
        found = nn.Embedding(self.num_embeddings, size, device=self.weight.device)
        fill(found, weight=self.weight[:, :size])
        return found

"""Norms of many widths: the first of their weights, and of their statistics."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from naspipe.elastic.slices import chosen, fill, named


class _ElasticBatchNorm(_BatchNorm):
    """A batch norm of which an input uses as much as it has channels.

    Its statistics are those of the layer: of each channel, over all widths that have it, as usual
    loops keep them. Before a subnet is judged they are taken anew.

    Args:
        num_features: the most.
        eps: as torch has it.
        momentum: as torch has it.
        inputs: the setting that is the input's channels; None where they are always the most.
    """

    plain: type[_BatchNorm]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        *,
        inputs: str | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum)
        self.inputs, self.takes = inputs, named(inputs)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Whatever torch's function takes."""

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Of an input, its channels."""
        size = input.shape[1]
        mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
        assert mean is not None and var is not None and count is not None
        momentum = self.momentum
        if self.training:
            count.add_(1)
            momentum = 1.0 / float(count) if momentum is None else momentum
        return functional.batch_norm(
            input, mean[:size], var[:size], self.weight[:size], self.bias[:size], self.training,
            momentum or 0.0, self.eps,
        )  # fmt: skip

    def cut(self, **settings: Any) -> _BatchNorm:
        """The plain layer of one setting."""
        size = chosen(self.inputs, settings, self.num_features)
        found = self.plain(size, self.eps, self.momentum, device=self.weight.device)
        parts = {name: each[:size] if each.dim() else each for name, each in self.named_buffers()}
        fill(found, weight=self.weight[:size], bias=self.bias[:size], **parts)
        return found


class BatchNorm1d(_ElasticBatchNorm):
    """Of inputs with no or one dimension beside batch and channels."""

    plain = nn.BatchNorm1d


class BatchNorm2d(_ElasticBatchNorm):
    """Of images."""

    plain = nn.BatchNorm2d


class LayerNorm(nn.LayerNorm):
    """A layer norm over as many features as the input has.

    Args:
        features: the most.
        eps: as torch has it.
        inputs: the setting that is the input's size; None where that is always the most.
    """

    def __init__(self, features: int, eps: float = 1e-5, *, inputs: str | None = None) -> None:
        super().__init__(features, eps)
        self.inputs, self.takes = inputs, named(inputs)

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Of an input, its features."""
        size = input.shape[-1]
        return functional.layer_norm(input, (size,), self.weight[:size], self.bias[:size], self.eps)

    def cut(self, **settings: Any) -> nn.LayerNorm:
        """The plain layer of one setting."""
        size = chosen(self.inputs, settings, self.normalized_shape[0])
        found = nn.LayerNorm(size, self.eps, device=self.weight.device)
        fill(found, weight=self.weight[:size], bias=self.bias[:size])
        return found

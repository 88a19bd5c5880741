"""Layers with several settings, each created with its largest sizes.

A forward uses the first rows and columns of a weight according to the settings; ``cut`` creates the
plain layer of one setting. Exported subnets copy the parts of this file's source that they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm


def chosen(name: str | None, settings: Mapping[str, Any], largest: int) -> int:
    """Return the value of a setting, or the largest if the size is fixed."""
    if name is None:
        return largest
    size = int(settings[name])
    if not 0 < size <= largest:
        raise ValueError(f"{name}={size}: expected 1 to {largest}, as large as the layer is")
    return size


def named(*names: str | None) -> tuple[str, ...]:
    """Return the settings that a module takes: those of its sizes that are not fixed."""
    return tuple(dict.fromkeys(name for name in names if name is not None))


@torch.no_grad()
def fill(module: nn.Module, **tensors: torch.Tensor | None) -> None:
    """Copy tensors into a module's parameters and buffers of these names."""
    for name, tensor in tensors.items():
        if tensor is not None:
            getattr(module, name).copy_(tensor)


def _taken(modules: Iterable[nn.Module]) -> tuple[str, ...]:
    return named(*(name for each in modules for name in getattr(each, "takes", ())))


def _cut(module: nn.Module, settings: dict[str, Any]) -> nn.Module:
    cut: nn.Module = module.cut(**settings) if hasattr(module, "takes") else module  # type: ignore[operator]
    return cut


class Sequential(nn.Sequential):
    """Modules in sequence, elastic or plain; settings are passed to those that take them."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__(*modules)
        self.takes = _taken(modules)

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        for module in self:
            own = settings if hasattr(module, "takes") else {}
            input = module(input, **own)
        return input

    def cut(self, **settings: Any) -> nn.Sequential:
        return nn.Sequential(*(_cut(module, settings) for module in self))


class Residual(Sequential):
    """A :class:`Sequential` whose output is added to its input."""

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        return input + super().forward(input, **settings)

    def cut(self, **settings: Any) -> nn.Sequential:
        return Residual(*(_cut(module, settings) for module in self))


class Depth(nn.Module):
    """A module that returns its input if the network is less deep; its ``cut`` is then an identity.

    Args:
        module: elastic or plain.
        place: number of such modules before it; 0 for the first.
        depth: name of the setting that is the number of such modules that are used.
    """

    def __init__(self, module: nn.Module, place: int, depth: str = "depth") -> None:
        super().__init__()
        self.module, self.place, self.depth = module, place, depth
        self.takes = named(depth, *_taken([module]))

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        if settings[self.depth] <= self.place:
            return input
        found: torch.Tensor = self.module(
            input, **(settings if hasattr(self.module, "takes") else {})
        )
        return found

    def cut(self, **settings: Any) -> nn.Module:
        if settings[self.depth] <= self.place:
            return nn.Identity()
        return _cut(self.module, settings)


class Conv2d(nn.Conv2d):
    """The first filters of a convolution, and the centre of each if the kernel is smaller.

    The padding keeps the output size equal for every odd kernel.

    Args:
        in_channels: maximum number of input channels.
        out_channels: maximum number of output channels.
        kernel_size: maximum size of the kernel.
        stride: stride of the kernel.
        bias: True to add a bias.
        inputs: name of the setting for the input channels; None if they are fixed.
        outputs: name of the setting for the output channels; None if they are fixed.
        kernel: name of the setting for the kernel size; None if it is fixed.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        bias: bool = True,
        *,
        inputs: str | None = None,
        outputs: str | None = None,
        kernel: str | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, bias=bias)
        self.inputs, self.outputs, self.kernel = inputs, outputs, kernel
        self.takes = named(inputs, outputs, kernel)

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        weight, bias = self._part(input.shape[1], settings)
        return functional.conv2d(input, weight, bias, self.stride, weight.shape[-1] // 2)

    def cut(self, **settings: Any) -> nn.Conv2d:
        weight, bias = self._part(chosen(self.inputs, settings, self.in_channels), settings)
        size = weight.shape[-1]
        found = nn.Conv2d(
            weight.shape[1],
            len(weight),
            size,
            self.stride[0],
            size // 2,
            bias=bias is not None,
            device=weight.device,
        )
        fill(found, weight=weight, bias=bias)
        return found

    def _part(
        self, channels: int, settings: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows = chosen(self.outputs, settings, self.out_channels)
        middle = _middle(chosen(self.kernel, settings, self.kernel_size[0]), self.kernel_size[0])
        bias = None if self.bias is None else self.bias[:rows]
        return self.weight[:rows, :channels, middle, middle], bias


class DepthwiseConv2d(nn.Conv2d):
    """One filter per channel: as many as the input has channels, and the centre of each.

    Args:
        channels: maximum number of channels.
        kernel_size: maximum size of the kernel.
        stride: stride of the kernel.
        bias: True to add a bias.
        inputs: name of the setting for the input channels; None if they are fixed.
        kernel: name of the setting for the kernel size; None if it is fixed.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        stride: int = 1,
        bias: bool = True,
        *,
        inputs: str | None = None,
        kernel: str | None = None,
    ) -> None:
        super().__init__(channels, channels, kernel_size, stride, groups=channels, bias=bias)
        self.inputs, self.kernel, self.takes = inputs, kernel, named(inputs, kernel)

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        weight, bias = self._part(input.shape[1], settings)
        padding, groups = weight.shape[-1] // 2, len(weight)
        return functional.conv2d(input, weight, bias, self.stride, padding, groups=groups)

    def cut(self, **settings: Any) -> nn.Conv2d:
        weight, bias = self._part(chosen(self.inputs, settings, self.in_channels), settings)
        channels, size = len(weight), weight.shape[-1]
        found = nn.Conv2d(
            channels,
            channels,
            size,
            self.stride[0],
            size // 2,
            groups=channels,
            bias=bias is not None,
            device=weight.device,
        )
        fill(found, weight=weight, bias=bias)
        return found

    def _part(
        self, channels: int, settings: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        middle = _middle(chosen(self.kernel, settings, self.kernel_size[0]), self.kernel_size[0])
        bias = None if self.bias is None else self.bias[:channels]
        return self.weight[:channels, :, middle, middle], bias


def _middle(size: int, largest: int) -> slice:
    begin = largest // 2 - size // 2
    return slice(begin, begin + size)


class _ElasticBatchNorm(_BatchNorm):
    """A batch norm that uses its first channels, as many as the input has.

    Each channel has one set of statistics, shared by all widths that include it, as in ordinary
    training loops. They are recomputed before a subnet is scored.

    Args:
        num_features: maximum number of channels.
        eps: as in torch.
        momentum: as in torch.
        inputs: name of the setting for the input channels; None if they are fixed.
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
        """Accept any input that torch's function accepts."""

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        size = input.shape[1]
        mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
        assert mean is not None and var is not None and count is not None
        momentum = self.momentum
        if self.training:
            count.add_(1)
            momentum = 1.0 / float(count) if momentum is None else momentum
        parts = mean[:size], var[:size], self.weight[:size], self.bias[:size]
        return functional.batch_norm(input, *parts, self.training, momentum or 0.0, self.eps)

    def cut(self, **settings: Any) -> _BatchNorm:
        size = chosen(self.inputs, settings, self.num_features)
        found = self.plain(size, self.eps, self.momentum, device=self.weight.device)
        parts = {name: each[:size] if each.dim() else each for name, each in self.named_buffers()}
        fill(found, weight=self.weight[:size], bias=self.bias[:size], **parts)
        return found


class BatchNorm1d(_ElasticBatchNorm):
    """A batch norm of inputs with at most one dimension besides batch and channels."""

    plain = nn.BatchNorm1d


class BatchNorm2d(_ElasticBatchNorm):
    """A batch norm of images."""

    plain = nn.BatchNorm2d


class LayerNorm(nn.LayerNorm):
    """A layer norm that uses its first features, as many as the input has.

    Args:
        features: maximum number of features.
        eps: as in torch.
        inputs: name of the setting for the input size; None if it is fixed.
    """

    def __init__(self, features: int, eps: float = 1e-5, *, inputs: str | None = None) -> None:
        super().__init__(features, eps)
        self.inputs, self.takes = inputs, named(inputs)

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        size = input.shape[-1]
        return functional.layer_norm(input, (size,), self.weight[:size], self.bias[:size], self.eps)

    def cut(self, **settings: Any) -> nn.LayerNorm:
        size = chosen(self.inputs, settings, self.normalized_shape[0])
        found = nn.LayerNorm(size, self.eps, device=self.weight.device)
        fill(found, weight=self.weight[:size], bias=self.bias[:size])
        return found


class Linear(nn.Linear):
    """The first rows of a Linear's weight, and as many columns as the input has.

    Args:
        in_features: maximum input size.
        out_features: maximum output size.
        bias: True to add a bias.
        inputs: name of the setting for the input size; None if it is fixed.
        outputs: name of the setting for the output size; None if it is fixed.
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
        size = chosen(self.outputs, settings, self.out_features)
        bias = None if self.bias is None else self.bias[:size]
        return functional.linear(input, self.weight[:size, : input.shape[-1]], bias)

    def cut(self, **settings: Any) -> nn.Linear:
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
        num_embeddings: number of embeddings.
        embedding_dim: maximum number of features.
        outputs: name of the setting for the output size; None if it is fixed.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, *, outputs: str | None = None
    ) -> None:
        super().__init__(num_embeddings, embedding_dim)
        self.outputs, self.takes = outputs, named(outputs)

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        size = chosen(self.outputs, settings, self.embedding_dim)
        return functional.embedding(input, self.weight[:, :size])

    def cut(self, **settings: Any) -> nn.Embedding:
        size = chosen(self.outputs, settings, self.embedding_dim)
        found = nn.Embedding(self.num_embeddings, size, device=self.weight.device)
        fill(found, weight=self.weight[:, :size])
        return found


class Attention(nn.Module):
    """The first heads of a self-attention over inputs ``[batch, length, features]``.

    Args:
        features: maximum size of input and output.
        num_heads: maximum number of heads.
        head_size: size of each head; it does not change.
        inputs: name of the setting for the size of input and output; None if it is fixed.
        heads: name of the setting for the number of heads.
        causal: True if a position attends only to itself and earlier positions.
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
        heads = chosen(self.heads, settings, self.num_heads)
        width = chosen(self.inputs, settings, self.features)
        found = Attention(width, heads, self.head_size, causal=self.causal)
        for name in ("query", "key", "value", "output"):
            part = getattr(self, name).cut(inputs=width, size=heads * self.head_size)
            getattr(found, name).load_state_dict(part.state_dict())
        return found.to(self.output.weight.device).train(self.training)

"""Convolutions of many widths and kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from naspipe.elastic.slices import chosen, fill, named


class Conv2d(nn.Conv2d):
    """The first filters of a convolution, and the middle of each where the kernel is smaller.

    It is padded so that every odd kernel gives as many rows and columns.

    Args:
        in_channels: the most.
        out_channels: the most.
        kernel_size: the largest.
        stride: of the kernel.
        bias: whether there is one.
        inputs: the setting that is the input's channels; None where they are always the most.
        outputs: the setting that is the output's.
        kernel: the setting that is the kernel's size.
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
        """Of a width the first channels, of a kernel the middle."""
        weight, bias = self._part(input.shape[1], settings)
        return functional.conv2d(input, weight, bias, self.stride, weight.shape[-1] // 2)

    def cut(self, **settings: Any) -> nn.Conv2d:
        """The plain layer of one setting."""
        weight, bias = self._part(chosen(self.inputs, settings, self.in_channels), settings)
        found = nn.Conv2d(
            weight.shape[1], len(weight), weight.shape[-1], self.stride[0], weight.shape[-1] // 2,
            bias=bias is not None, device=weight.device,
        )  # fmt: skip
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
    """A filter for each channel; as many as the input has, and the middle of each.

    Args:
        channels: the most.
        kernel_size: the largest.
        stride: of the kernel.
        bias: whether there is one.
        inputs: the setting that is the input's channels; None where they are always the most.
        kernel: the setting that is the kernel's size.
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
        """Of a width the first channels, of a kernel the middle."""
        weight, bias = self._part(input.shape[1], settings)
        padding, groups = weight.shape[-1] // 2, len(weight)
        return functional.conv2d(input, weight, bias, self.stride, padding, groups=groups)

    def cut(self, **settings: Any) -> nn.Conv2d:
        """The plain layer of one setting."""
        weight, bias = self._part(chosen(self.inputs, settings, self.in_channels), settings)
        found = nn.Conv2d(
            len(weight), len(weight), weight.shape[-1], self.stride[0], weight.shape[-1] // 2,
            groups=len(weight), bias=bias is not None, device=weight.device,
        )  # fmt: skip
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

"""The candidates of the translation spaces.

Every module is deterministic on CPU and CUDA, does not modify its inputs, and draws no random
numbers after its initialisation. Tensors are (batch, token, width); masks are True at padding.
Sources are padded on the left, targets on the right, so that a causal decoder needs no mask of its
own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.activations import activation_module
from search_spaces.nlp.choices import DECODER_BLOCKS, ENCODER_BLOCKS, Operation

_OUTPUT_GAIN = (ENCODER_BLOCKS + DECODER_BLOCKS) ** -0.5
"""Initial scale of each residual branch's last weight; 48 branches add up to the input's size."""


def linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Linear:
    """A linear map that keeps unit variance, times ``gain``, with bias 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=gain * inputs**-0.5)
    nn.init.zeros_(layer.bias)
    return layer


def _hide(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``x`` with zeros at padding, so that convolutions treat padding like the ends."""
    return x if mask is None else x.masked_fill(mask.unsqueeze(-1), 0.0)


def _lowest(dtype: torch.dtype) -> float:
    """Return a score whose weight is exactly 0 next to any real score, yet far from infinity.

    A row without any real score thus gets equal weights, not NaN.
    """
    return torch.finfo(dtype).min / 2


class Convolution(nn.Module):
    """Full convolution over tokens, as one product with the neighbours concatenated."""

    def __init__(self, width: int, kernel: int, causal: bool) -> None:
        super().__init__()
        self.kernel = kernel
        self.left = kernel - 1 if causal else kernel // 2
        self.linear = linear(kernel * width, width, _OUTPUT_GAIN)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the sum of each token's neighbours, each multiplied by its own matrix."""
        if self.kernel == 1:
            out: Tensor = self.linear(x)
            return out
        length = x.size(1)
        padded = F.pad(_hide(x, mask), (0, 0, self.left, self.kernel - 1 - self.left))
        side_by_side = torch.cat([padded[:, k : k + length] for k in range(self.kernel)], -1)
        out = self.linear(side_by_side)
        return out

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, left={self.left}"


class SeparableConvolution(nn.Module):
    """Depthwise convolution over tokens, then a pointwise one.

    The depthwise part is a sum of shifted products: as fast as the library's kernels on small
    inputs, and without their set-up for each new shape of batch.
    """

    def __init__(self, width: int, kernel: int, causal: bool) -> None:
        super().__init__()
        self.kernel = kernel
        self.left = kernel - 1 if causal else kernel // 2
        self.taps = nn.Parameter(torch.empty(kernel, width))
        nn.init.normal_(self.taps, std=kernel**-0.5)
        self.pointwise = linear(width, width, _OUTPUT_GAIN)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Filter each channel, then mix the channels."""
        length = x.size(1)
        padded = F.pad(_hide(x, mask), (0, 0, self.left, self.kernel - 1 - self.left))
        taps = self.taps.unbind(0)
        total = padded[:, :length] * taps[0]
        for k in range(1, self.kernel):
            total = torch.addcmul(total, padded[:, k : k + length], taps[k])
        out: Tensor = self.pointwise(total)
        return out

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, left={self.left}"


class LightConvolution(nn.Module):
    """Gated input, depthwise convolution with one softmax kernel per head, output projection.

    The kernels are arranged as one banded matrix over tokens per head, so that all the work is
    matrix products.
    """

    def __init__(self, width: int, kernel: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.kernel = kernel
        self.heads = heads
        self.left = kernel - 1 if causal else kernel // 2
        self.input = linear(width, 2 * width)
        self.taps = nn.Parameter(torch.empty(heads, kernel))
        nn.init.normal_(self.taps)
        self.output = linear(width, width, 2 * _OUTPUT_GAIN)  # 2: the gate halves

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Gate, take weighted means over neighbours, mix the channels."""
        gated = _hide(F.glu(self.input(x), -1), mask)
        batch, length, width = gated.shape
        by_head = gated.view(batch, length, self.heads, -1).permute(2, 1, 0, 3)
        mixed = self._band(length, gated) @ by_head.reshape(self.heads, length, -1)
        mixed = mixed.view(self.heads, length, batch, -1).permute(2, 1, 0, 3)
        out: Tensor = self.output(mixed.reshape(batch, length, width))
        return out

    def _band(self, length: int, like: Tensor) -> Tensor:
        """Return (heads, length, length), in which row t contains the kernel around token t."""
        place = torch.arange(length, device=like.device)
        offset = place.unsqueeze(0) - place.unsqueeze(1) + self.left
        tap = torch.arange(self.kernel, device=like.device).view(-1, 1, 1)
        spread = (offset == tap).to(like.dtype).view(self.kernel, -1)
        band = self.taps.softmax(-1).to(like.dtype) @ spread
        return band.view(self.heads, length, length)

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, heads={self.heads}, left={self.left}"


class SelfAttention(nn.Module):
    """Multi-head attention among the tokens of one side."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.projections = linear(width, 3 * width)
        self.output = linear(width, width, _OUTPUT_GAIN)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Mix the tokens, only past ones if causal, and never padding."""
        query, key, value = self.projections(x).chunk(3, -1)
        hidden = None if mask is None else mask[:, None, None, :]
        if self.causal:
            ones = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device)
            later = ones.triu(1)
            hidden = later if hidden is None else hidden | later
        out: Tensor = self.output(_attend(query, key, value, self.heads, hidden))
        return out

    def extra_repr(self) -> str:
        return f"heads={self.heads}, causal={self.causal}"


class CrossAttention(nn.Module):
    """Multi-head attention from the target's tokens to the encoder's memory."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = linear(width, width)
        self.key = linear(width, width)
        self.value = linear(width, width)
        self.output = linear(width, width, _OUTPUT_GAIN)

    def forward(self, y: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Attend to the memory's tokens that are not padding."""
        hidden = mask[:, None, None, :]
        key, value = self.key(memory), self.value(memory)
        out: Tensor = self.output(_attend(self.query(y), key, value, self.heads, hidden))
        return out

    def extra_repr(self) -> str:
        return f"heads={self.heads}"


def _attend(query: Tensor, key: Tensor, value: Tensor, heads: int, hidden: Tensor | None) -> Tensor:
    """Compute attention as plain products: the same kernels, in the same order, on every device.

    This is also faster here: fused attention took 1.3 to 1.8 times as long at 600 tokens of width
    64 on one CPU thread.
    """

    def split(part: Tensor) -> Tensor:
        return part.view(part.size(0), part.size(1), heads, -1).transpose(1, 2)

    scale = (query.size(-1) // heads) ** -0.5
    scores = (split(query) * scale) @ split(key).transpose(2, 3)
    if hidden is not None:
        bias = torch.zeros(hidden.shape, dtype=scores.dtype, device=scores.device)
        scores = scores + bias.masked_fill(hidden, _lowest(scores.dtype))
    mixed: Tensor = scores.softmax(-1).to(value.dtype) @ split(value)
    out: Tensor = mixed.transpose(1, 2).flatten(2)
    return out


class GatedLinear(nn.Module):
    """Gated linear unit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = linear(width, 2 * width)
        with torch.no_grad():
            self.linear.weight[:width] *= 2 * _OUTPUT_GAIN  # 2: the gate halves

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return one half of the channels times the sigmoid of the other."""
        return F.glu(self.linear(x), -1)


def _operation(operation: Operation, width: int, causal: bool) -> nn.Module:
    match operation.kind:
        case "conv":
            return Convolution(width, operation.kernel, causal)
        case "separable":
            return SeparableConvolution(width, operation.kernel, causal)
        case "light":
            return LightConvolution(width, operation.kernel, operation.heads, causal)
        case "attention":
            return SelfAttention(width, operation.heads, causal)
        case "glu":
            return GatedLinear(width)
    raise ValueError(f"unknown operation {operation}")


class EncoderCandidate(nn.Module):
    """One operation over the source: ``x + activation(operation(norm(x)))``."""

    def __init__(self, width: int, operation: Operation, activation: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.operation = _operation(operation, width, causal=False)
        self.activation = activation_module(activation)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the changed tokens, and the unchanged mask."""
        return x + self.activation(self.operation(self.norm(x), mask)), mask


class DecoderCandidate(nn.Module):
    """One causal operation over the target, then attention to the memory."""

    def __init__(self, width: int, operation: Operation, activation: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.operation = _operation(operation, width, causal=True)
        self.activation = activation_module(activation)
        self.cross_norm = nn.LayerNorm(width)
        self.cross = CrossAttention(width, heads=4)

    def forward(self, y: Tensor, memory: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the changed tokens, and the unchanged memory and mask."""
        y = y + self.activation(self.operation(self.norm(y), None))
        y = y + self.cross(self.cross_norm(y), memory, mask)
        return y, memory, mask

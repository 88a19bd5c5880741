"""The torch modules of the image classification spaces.

Every module is deterministic on CPU and CUDA, does not modify its inputs, and draws no random
numbers after its initialisation. Tensors are (batch, channel, height, width).
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from search_spaces.activations import activation_module
from search_spaces.cv.choices import Operation

_RESIDUAL_GAIN = 0.1
"""Initial scale of each residual branch's norm.

All 32 branches together then add a third as much as the input: when branches change from subnet to
subnet, 0.18 and 0.05 train worse.
"""


def _conv(
    inputs: int,
    outputs: int,
    kernel: tuple[int, int],
    *,
    stride: int = 1,
    groups: int = 1,
    dilation: int = 1,
) -> nn.Conv2d:
    """Return a convolution without bias (a norm follows) that keeps the size at stride 1."""
    layer = nn.Conv2d(
        inputs,
        outputs,
        kernel,
        stride=stride,
        padding=(dilation * (kernel[0] // 2), dilation * (kernel[1] // 2)),
        groups=groups,
        dilation=dilation,
        bias=False,
    )
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return layer


class _MaxOfThree(torch.autograd.Function):
    """Maximum of each pixel and its two neighbours along one dimension."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        last = x.size(dim) - 1
        out = x.clone()
        after, before = out.narrow(dim, 1, last), out.narrow(dim, 0, last)
        torch.maximum(after, x.narrow(dim, 0, last), out=after)
        torch.maximum(before, x.narrow(dim, 1, last), out=before)
        ctx.save_for_backward(x, out)
        ctx.dim = dim
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Pass each gradient to the pixel itself if greatest, else to the one before or after."""
        x, out = ctx.saved_tensors
        (grad,) = grads
        dim, last = ctx.dim, x.size(ctx.dim) - 1
        zero = torch.zeros((), dtype=grad.dtype, device=grad.device)
        total = torch.where(x == out, grad, zero)
        rest = grad - total
        from_before = x.narrow(dim, 0, last) == out.narrow(dim, 1, last)
        to_before = torch.where(from_before, rest.narrow(dim, 1, last), zero)
        rest.narrow(dim, 1, last).sub_(to_before)
        total.narrow(dim, 0, last).add_(to_before)
        total.narrow(dim, 1, last).add_(rest.narrow(dim, 0, last))
        return total, None


class MaxPool(nn.Module):
    """Maximum of each pixel's 3x3 neighbourhood, first along columns, then along rows.

    The library's own kernel may add up gradients in an arbitrary order on CUDA, and takes 1.5 times
    as long on CPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same size; the border is not padded with values."""
        for dim in (2, 3):
            x = cast(Tensor, _MaxOfThree.apply(x, dim))  # type: ignore[no-untyped-call]
        return x


def _operation(operation: Operation, width: int) -> nn.Module:
    kernel = operation.kernel
    match operation.kind:
        case "identity":
            return nn.Identity()
        case "separable" | "dilated separable":
            dilation = 1 if operation.kind == "separable" else 2
            depthwise = _conv(width, width, (kernel, kernel), groups=width, dilation=dilation)
            return nn.Sequential(depthwise, _conv(width, width, (1, 1)))
        case "conv":
            return _conv(width, width, (kernel, kernel))
        case "conv pair":
            return nn.Sequential(_conv(width, width, (1, kernel)), _conv(width, width, (kernel, 1)))
        case "average pool":
            return nn.AvgPool2d(kernel, stride=1, padding=kernel // 2)
        case "max pool":
            return MaxPool()
    raise ValueError(f"unknown operation {operation}")


class Candidate(nn.Module):
    """One operation: ``x + norm(operation(activation(x)))``."""

    def __init__(self, width: int, operation: Operation, activation: str) -> None:
        super().__init__()
        self.activation = activation_module(activation)
        self.operation = _operation(operation, width)
        self.norm = nn.BatchNorm2d(width)
        nn.init.constant_(self.norm.weight, _RESIDUAL_GAIN)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of the same size."""
        added: Tensor = self.norm(self.operation(self.activation(x)))
        return x + added


class Stem(nn.Module):
    """Convolutions that halve the image, and one more, whose norms keep no statistics."""

    def __init__(self, channels: int, width: int, halvings: int) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        inputs = channels
        for step in range(halvings):
            outputs = width >> (halvings - 1 - step)
            steps += [_conv(inputs, outputs, (3, 3), stride=2), nn.GroupNorm(4, outputs), nn.ReLU()]
            inputs = outputs
        steps += [_conv(inputs, width, (3, 3)), nn.GroupNorm(4, width)]
        self.steps = nn.Sequential(*steps)

    def forward(self, image: Tensor) -> Tensor:
        """Return maps of ``width`` channels."""
        out: Tensor = self.steps(image)
        return out


class Head(nn.Module):
    """Scores of every class from the mean of positive parts over all pixels."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, classes)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, class)."""
        out: Tensor = self.linear(self.norm(x.relu().mean((2, 3))))
        return out

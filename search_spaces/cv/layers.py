"""The torch modules of the image classification spaces.

Every module is deterministic on CPU and CUDA, keeps its inputs as they are, and draws nothing at
random after its initialisation. Tensors are (batch, channel, height, width).
"""

from __future__ import annotations

from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from search_spaces.cv.spec import BLOCKS, Operation


def _conv(
    inputs: int,
    outputs: int,
    kernel: tuple[int, int],
    *,
    stride: int = 1,
    groups: int = 1,
    dilation: int = 1,
) -> nn.Conv2d:
    """A convolution without bias (a norm follows) that keeps the size at stride 1."""
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


class MaxPool(nn.Module):
    """Greatest of each pixel's neighbourhood, as maxima of shifted copies, rows then columns.

    The library's own kernel adds up gradients in no fixed order on CUDA.
    """

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        """Keep the size; pixels beyond the border never win."""
        for dim in (2, 3):
            size, reach = x.size(dim), self.kernel // 2
            pad = (0, 0, reach, reach) if dim == 2 else (reach, reach)
            padded = F.pad(x, pad, value=torch.finfo(x.dtype).min)
            x = reduce(torch.maximum, (padded.narrow(dim, k, size) for k in range(self.kernel)))
        return x

    def extra_repr(self) -> str:
        """Show the size, which no weight shows."""
        return f"kernel={self.kernel}"


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
            return MaxPool(kernel)
    raise ValueError(f"unknown operation {operation}")


def _activation(name: str) -> nn.Module:
    return {
        "none": nn.Identity,
        "relu": nn.ReLU,
        "swish": nn.SiLU,
        "leaky relu": nn.LeakyReLU,
    }[name]()


class Candidate(nn.Module):
    """One operation: ``x + norm(operation(activation(x)))``.

    The norm starts at a scale with which all blocks together add about as much as they get.
    """

    def __init__(self, width: int, operation: Operation, activation: str) -> None:
        super().__init__()
        self.activation = _activation(activation)
        self.operation = _operation(operation, width)
        self.norm = nn.BatchNorm2d(width)
        nn.init.constant_(self.norm.weight, BLOCKS**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of the same size."""
        return x + self.norm(self.operation(self.activation(x)))


class Stem(nn.Module):
    """Convolutions that halve the image, each with a norm that keeps no statistics."""

    def __init__(self, channels: int, width: int, halvings: int) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        inputs = channels
        for step in range(halvings):
            outputs = width >> (halvings - 1 - step)
            if step:
                steps.append(nn.ReLU())
            steps += [_conv(inputs, outputs, (3, 3), stride=2), nn.GroupNorm(4, outputs)]
            inputs = outputs
        self.steps = nn.Sequential(*steps)

    def forward(self, image: Tensor) -> Tensor:
        """Return maps of ``width`` channels."""
        out: Tensor = self.steps(image)
        return out


class Head(nn.Module):
    """Scores of every class from the mean over all pixels."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, classes)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, class)."""
        out: Tensor = self.linear(self.norm(x.mean((2, 3))))
        return out

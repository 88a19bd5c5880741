"""A space whose blocks take a fixed time without using the processor, as on devices of their own.

So that eight stages overlap on two cores; the values are those of small linear layers.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

import naspipe

BLOCKS, CANDIDATES = 8, 13
FORWARD_SECONDS, BACKWARD_SECONDS = 0.01, 0.02
WIDTH = 8


class _Wait(torch.autograd.Function):
    """Hands its input on, late, in both directions."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        time.sleep(FORWARD_SECONDS)
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        time.sleep(BACKWARD_SECONDS)
        return gradients[0]


class Waiting(nn.Module):
    """A linear layer that takes a fixed time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Compute and wait."""
        waited: Tensor = _Wait.apply(self.linear(x))
        return waited


space = naspipe.Space(
    "waiting",
    [naspipe.Block([Waiting] * CANDIDATES, kind="waiting") for _ in range(BLOCKS)],
)


def batches(seed: int, sequence_id: int) -> dict[str, Tensor]:
    """Four samples of noise and their classes."""
    draw = torch.Generator().manual_seed(seed * 1_000_003 + sequence_id)
    return {
        "input": torch.randn(4, WIDTH, generator=draw),
        "target": torch.randint(0, WIDTH, (4,), generator=draw),
    }


loss = nn.CrossEntropyLoss()

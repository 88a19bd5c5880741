"""How many operations candidates take, from shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

Layers = Sequence[Callable[[], nn.Module] | Sequence[Callable[[], nn.Module]]]
"""Of each layer of a chain a factory, or those of its candidates."""


def candidates_of(layers: Layers) -> list[Sequence[Callable[[], nn.Module]]]:
    """Of each layer the factories of its candidates."""
    return [[each] if callable(each) else each for each in layers]


@torch.no_grad()
def operations(layers: Layers, example: torch.Tensor) -> list[list[float]]:
    """The products of one sample's forward, of each candidate of each layer.

    What torch's counter knows: matrix products and convolutions, two of its operations being one
    product. Candidates are computed on torch's meta device; each layer is given what the first
    candidate of the one before returns.

    Args:
        layers: as of :func:`naspipe.mixed.student`.
        example: of the shape that the first one is given; the first dimension counts samples.
    """
    from torch.utils.flop_counter import FlopCounterMode  # which prints tables: needs more

    table: list[list[float]] = []
    state = example.to("meta")
    for factories in candidates_of(layers):
        row, outputs = [], []
        for factory in factories:
            with torch.random.fork_rng(devices=[]):
                module = factory().to("meta").eval()
            counter = FlopCounterMode(display=False)
            with torch.device("meta"), counter:
                outputs.append(module(state))
            row.append(counter.get_total_flops() / 2 / max(1, len(state)))
        table.append(row)
        state = outputs[0]
    return table

"""Running statistics for a subnet whose weights were trained as parts of others.

What batch normalisation remembers of training is a mixture over all subnets that used the layer.
Before a subnet is judged its statistics are taken anew, from batches that go through it alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from naspipe.core.space import Space
from naspipe.planning.cost import first_of_kind
from naspipe.runtime.sketching.layer_sizes import sketch


def statistics_of(module: nn.Module) -> list[_BatchNorm]:
    """The norms of a layer that use running statistics when they are evaluated."""
    return [
        each
        for each in module.modules()
        if isinstance(each, _BatchNorm) and each.track_running_stats
    ]


@contextmanager
def fresh_statistics(norms: Sequence[_BatchNorm], *, keeps: bool = False) -> Iterator[None]:
    """Statistics that start anew and average over all batches alike; put back afterwards.

    The norms are in training mode until :func:`settle`, or until the end. With ``keeps`` the new
    statistics stay, unless something raises.
    """
    before = [
        (norm.momentum, {n: b.clone() for n, b in norm._buffers.items() if b is not None})
        for norm in norms
    ]
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        yield
    except BaseException:
        keeps = False
        raise
    finally:
        for norm, (momentum, buffers) in zip(norms, before, strict=True):
            norm.momentum = momentum
            norm.eval()
            for name, buffer in () if keeps else buffers.items():
                here = norm._buffers[name]
                if isinstance(here, torch.Tensor):
                    here.copy_(buffer)


def settle(norms: Sequence[_BatchNorm]) -> None:
    """Use the statistics from now on instead of taking them."""
    for norm in norms:
        norm.eval()


def blocks_to_calibrate(space: Space) -> int:
    """Blocks up to the last one that may keep running statistics: batches need go no further."""
    keeps = {
        twin: any(
            statistics_of(sketch(space, twin, candidate))
            for candidate in range(len(space.blocks[twin].candidates))
        )
        for twin in set(first_of_kind(space))
    }
    return max((b + 1 for b, twin in enumerate(first_of_kind(space)) if keeps[twin]), default=0)

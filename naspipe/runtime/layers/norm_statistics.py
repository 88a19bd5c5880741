"""Batch statistics of normalisation, taken in the forward and folded into the layer at its WRITE.

With ``norms=deferred`` no forward of a step changes a layer, so passes need no order and a layer
with batch normalisation may lag. Each pass leaves the mean and the unbiased variance of its batch.
The WRITE that ends the step folds them, one pass after the other, as torch does in a forward::

    running.mul_(1 - momentum).add_(batch, alpha=momentum)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from naspipe.config.errors import ConfigError

KNOWN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""What can be deferred."""

Statistics = dict[str, torch.Tensor]
"""Of one pass: mean and variance by the name of the buffer that they are folded into."""

_RUNNING = ("running_mean", "running_var")
_COUNT = "num_batches_tracked"


def unknown_norm(module: nn.Module) -> str | None:
    """The name of a part that keeps running statistics in a way that is not known here."""
    for name, part in module.named_modules():
        if isinstance(part, _NormBase) and part.track_running_stats and type(part) not in KNOWN:
            return f"{name or 'itself'} ({type(part).__name__})"
    return None


def other_buffers(module: nn.Module) -> bool:
    """Whether there are buffers that are no statistics of known norms."""
    return any(
        buffer is not None
        for part in module.modules()
        for buffer in part._buffers.values()
        if type(part) not in KNOWN
    )


@contextmanager
def collected(module: nn.Module) -> Iterator[Statistics]:
    """Inside, forwards leave their batch's statistics in the result; the module keeps its own.

    Raises:
        ConfigError: when a norm is used twice in one forward.
    """
    norms = dict(_norms(module))
    before = {name: (dict(norm._buffers), norm.momentum) for name, norm in norms.items()}
    for norm in norms.values():
        # A kernel that adds the whole of a batch's statistic to zero leaves just that.
        for key, buffer in norm._buffers.items():
            norm._buffers[key] = None if buffer is None else torch.zeros_like(buffer)
        norm.momentum = 1.0
    found: Statistics = {}
    try:
        yield found
        for name, norm in norms.items():
            uses = int(_buffer(norm, _COUNT))
            if uses > 1:
                raise ConfigError(
                    f"norms=deferred: expected a norm to be used once in a forward, found "
                    f"{name} used {uses} times; use norms=ordered"
                )
            if uses:
                found.update({f"{name}.{key}": _buffer(norm, key) for key in _RUNNING})
    finally:
        for name, norm in norms.items():
            buffers, norm.momentum = before[name]
            norm._buffers.update(buffers)


@torch.no_grad()
def fold(module: nn.Module, statistics: Mapping[str, torch.Tensor]) -> None:
    """Fold one pass's statistics into the running ones."""
    for name, norm in _norms(module):
        if f"{name}.running_mean" not in statistics:
            continue
        count = int(_buffer(norm, _COUNT).add_(1))
        momentum = 1 / count if norm.momentum is None else norm.momentum
        for key in _RUNNING:
            batch = statistics[f"{name}.{key}"]
            _buffer(norm, key).mul_(1 - momentum).add_(batch, alpha=momentum)


def _buffer(norm: nn.Module, name: str) -> torch.Tensor:
    buffer = norm._buffers[name]
    assert buffer is not None, "a norm that tracks statistics has them all"
    return buffer


def _norms(module: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    for name, part in module.named_modules():
        if type(part) in KNOWN and part.track_running_stats and part.training:
            yield name, part

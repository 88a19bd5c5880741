"""Graphs that outlive an eviction: of weights autograd keeps where they are found, and no memory.

Between its forward and its backward a layer may leave the device, and come back to other memory.
What autograd saved of the activations is good all the while. In place of a weight it is given a
note, and in the backward the weight as it is then: the same values, wherever they are.

Whoever else holds a layer's memory is told by :func:`num_holders`: then the graph has to go.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from naspipe.runtime.layers.layer_layout import span_bytes

_REFUSAL = "saved tensor hooks"
"""In the message with which ``torch.func.grad`` and its like refuse to be called within."""


_PLAIN = (torch.Tensor, nn.Parameter)
"""Of subclasses nobody knows whether they have memory."""


class _Note(NamedTuple):
    """A weight or a statistic, or a part of one."""

    find: Callable[[], torch.Tensor]
    offset: int
    """Elements from its first."""
    shape: torch.Size
    stride: tuple[int, ...]
    version: int | None
    """How often the weight had been changed in place; None for a statistic, where nobody counts."""


_Saved = _Note | tuple[torch.Tensor, int]


class _Weights:
    """The tensors of one layer, by where they are.

    Args:
        weights: its parameters.
        norms: its parts that keep running statistics in buffers, which autograd saves, too.
    """

    def __init__(self, weights: Iterable[torch.Tensor], norms: Iterable[nn.Module]) -> None:
        rows: list[tuple[torch.Tensor, Callable[[], torch.Tensor], bool]]
        rows = [(weight, weight.detach, True) for weight in weights]
        for norm in norms:
            rows += [
                (buffer, partial(norm.get_buffer, name), False)
                for name, buffer in norm._buffers.items()
                if buffer is not None
            ]
        self._rows = {row[0].data_ptr(): row for row in rows if row[0].numel()}
        self._starts = sorted(self._rows)
        self._end = 0
        if self._starts:
            last = self._starts[-1]
            self._end = last + span_bytes(self._rows[last][0])

    def note(self, tensor: torch.Tensor, version: int) -> _Note | None:
        """What stands for a tensor; None where it is none of the layer's and no part of one."""
        if tensor.layout is not torch.strided or type(tensor) not in _PLAIN:
            return None
        address = tensor.data_ptr()
        if address >= self._end:
            return None
        place = bisect(self._starts, address) - 1
        if place < 0:
            return None
        own, find, is_counted = self._rows[self._starts[place]]
        far = address - self._starts[place]
        if far >= span_bytes(own) or tensor.dtype != own.dtype:
            return None
        if is_counted and own._version != version:  # it counts for itself, so it is no view
            return None
        known = version if is_counted else None
        return _Note(find, far // own.itemsize, tensor.shape, tensor.stride(), known)


_within: list[_Weights] = []
"""Those of the forward that is under way."""


@contextmanager
def found_again(weights: Iterable[torch.Tensor], norms: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, autograd keeps no memory of these tensors; a backward takes them as they are then.

    They may be bound to other memory meanwhile, which has the same values.

    Args:
        weights: of a layer.
        norms: its parts of which the buffers are meant, too: their forwards may change them, and
            no backward behind a forward in training reads them.
    """
    _within.append(_Weights(weights, norms))
    try:
        # The same two functions each time: torch.compile would compile anew for others.
        with torch.autograd.graph.saved_tensors_hooks(_pack, _unpack):
            yield
    finally:
        _within.pop()


def is_refusal(error: Exception) -> bool:
    """Whether what was called cannot be called inside of :func:`found_again`."""
    return isinstance(error, RuntimeError) and _REFUSAL in str(error)


def num_holders(memory: torch.Tensor) -> int:
    """How many tensors lie in the storage of one, itself included, and what else refers to it."""
    return int(torch._C._storage_Use_Count(memory.untyped_storage()._cdata))


def _pack(tensor: torch.Tensor) -> _Saved:
    version = tensor._version
    return _within[-1].note(tensor, version) or (tensor.detach(), version)


def _unpack(saved: _Saved) -> torch.Tensor:
    """The tensor, unless it was changed in place: with hooks torch does not look at that."""
    if isinstance(saved, _Note):
        found = saved.find()
        if saved.offset or saved.shape != found.shape or saved.stride != found.stride():
            start = int(found.storage_offset()) + saved.offset
            found = found.as_strided(saved.shape, saved.stride, start)
        version = saved.version
    else:
        found, version = saved
    if version is not None and found._version != version:
        raise RuntimeError(
            f"one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a tensor of shape {list(found.shape)} is at version {found._version}, "
            f"expected version {version}"
        )
    return found

"""Find user code that remembers more than a run keeps, in one of the first steps of a plain loop.

A run keeps the parameters, buffers and optimizer state of its layers. If a layer or a loss keeps
anything else from one call to the next, it computes something else after a resume, on another
stage, or when another subnet is computed in between. So before one of its first steps, the plain
loop makes the layers that run user code again, from what a checkpoint would hold of them. In that
step, it also calls the earlier layers and the loss with other values after each real call, as other
subnets would. User code that remembers nothing else computes the same bits as before. The bits of
other code differ from those of the run. What only backwards change, outside of the module that they
belong to, is not found.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from naspipe.data.keyed.batch_digest import digest
from naspipe.data.keyed.global_draws import kept_draws

STEPS_BEFORE = 2
"""How many steps the plain loop trains before it makes layers again."""

HINT = (
    "code that remembers something outside of parameters, buffers and optimizer state (before step "
    "{step} the plain loop made layers again from these, and then called them for other items, too)"
)
"""Explains differences from that step on."""

_TORCHS = {*vars(nn.Module())}
"""The attributes that every module has."""
_PLAIN = (bool, int, float, complex, str, bytes)
_DEEPEST = 4
"""How many containers inside each other are compared."""


def disturb(call: Callable[..., Any], *tensors: torch.Tensor) -> None:
    """Call user code with other values and ignore the result, as another subnet would call it."""
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if on_gpu else ()
    with kept_draws(), torch.random.fork_rng(devices), torch.no_grad(), suppress(Exception):
        call(*map(_other, tensors))


def _other(tensor: torch.Tensor) -> torch.Tensor:
    """The values of other items; floating-point values are also halved, and indices are not."""
    other = tensor.detach().flip(0) if tensor.dim() else tensor.detach().clone()
    return other.mul_(0.5) if other.is_floating_point() else other


def changed_attributes(before: Mapping[str, Any], module: nn.Module) -> Iterator[str]:
    """The attributes of a layer that have other values than :func:`attributes` said before."""
    now = attributes(module)
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield name


def attributes(module: nn.Module) -> Mapping[str, Any]:
    """By the name of the attribute, something that changes when its value does.

    Parameters, buffers and what shares their memory are left out, and so are torch's own modules,
    which keep nothing that a checkpoint does not have.
    """
    own = {each.untyped_storage()._cdata for each in (*module.parameters(), *module.buffers())}
    return {
        ".".join(filter(None, (part, name))): _seen(value, own)
        for part, each in module.named_modules()
        if not type(each).__module__.startswith("torch.nn.")
        for name, value in vars(each).items()
        if name not in _TORCHS
    }


def _seen(value: Any, own: Collection[int], depth: int = _DEEPEST) -> Any:
    """Something that changes with a value; ``own`` is the memory of tensors that a run keeps."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_meta:
            return None
        return None if value.untyped_storage()._cdata in own else digest(value)
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, torch.Generator):
        return digest(value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, Mapping) and depth:
        return [(_plain(key), _seen(each, own, depth - 1)) for key, each in value.items()]
    if isinstance(value, list | tuple | deque) and depth:
        return [_seen(each, own, depth - 1) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(filter(None, map(_plain, value)))
    return _plain(value)


def _plain(value: Any) -> str | None:
    """A text for a plain value; that of any other object may have its address."""
    return repr(value) if type(value) in _PLAIN else None

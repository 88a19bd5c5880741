"""Find user code that remembers more than a run keeps, in one of the first steps of a plain loop.

A run keeps the parameters, buffers and optimizer state of its layers. If a layer or a loss keeps
anything else from one call to the next, it computes something else after a resume, on another
stage, or when another subnet is computed in between. So before one of its first steps, the plain
loop makes the layers that run user code again, from what a checkpoint would hold of them. In that
step, it also calls the earlier layers and the loss with other values after each real call, as other
subnets would. User code that remembers nothing else computes the same bits as before. All other
code computes bits that differ from those of the run.
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
    "code that remembers something outside of parameters and buffers (before step {step} the plain "
    "loop made the layers again from these, and in that step it called them for another batch too)"
)
"""Explains differences from that step on."""

_TORCHS = {*vars(nn.Module())}
"""The attributes that every module has."""
_PLAIN = (bool, int, float, complex, str, bytes)
_DEEPEST = 4
"""How many containers inside each other are compared."""


def disturb(call: Callable[..., Any], *tensors: torch.Tensor) -> None:
    """Call user code with other values and ignore the result, as another subnet would call it."""
    with kept_draws(), torch.no_grad(), suppress(Exception):
        call(*map(_other, tensors))


def _other(tensor: torch.Tensor) -> torch.Tensor:
    """Values of the same kind: those of other items, and scaled where they are no numbers of
    classes or words."""
    other = tensor.detach().flip(0) if tensor.dim() else tensor.detach().clone()
    return other.mul_(0.5) if other.is_floating_point() else other


def changed_attributes(before: nn.Module, after: nn.Module) -> Iterator[str]:
    """The attributes that two copies of a layer have with other values, beside parameters and
    buffers, as far as values can be compared."""
    first, second = _attributes(before), _attributes(after)
    for name in sorted(first.keys() | second.keys()):
        if first.get(name) != second.get(name):
            yield name


def _attributes(module: nn.Module) -> Mapping[str, Any]:
    """By the name of the attribute, something that changes when its value does.

    Torch's own modules are left out: they keep nothing that a checkpoint does not have.
    """
    own = {id(each) for each in (*module.parameters(), *module.buffers())}
    return {
        ".".join(filter(None, (part, name))): _seen(value, own)
        for part, each in module.named_modules()
        if not type(each).__module__.startswith("torch.nn.")
        for name, value in vars(each).items()
        if name not in _TORCHS
    }


def _seen(value: Any, own: Collection[int], depth: int = _DEEPEST) -> Any:
    """Something that changes with a value; ``own`` has the ids of tensors that a run keeps."""
    if isinstance(value, torch.Tensor):
        return None if id(value) in own else digest(value)
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, torch.Generator):
        return digest(value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, Mapping) and depth:
        return [(repr(key), _seen(each, own, depth - 1)) for key, each in value.items()]
    if isinstance(value, list | tuple | deque) and depth:
        return [_seen(each, own, depth - 1) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    return repr(value) if type(value) in _PLAIN else None

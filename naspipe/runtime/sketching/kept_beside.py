"""What a module keeps beside its parameters and buffers, as far as it can be compared."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from naspipe.data.keyed.batch_digest import digest
from naspipe.runtime.layers.kept_state import TORCHS

_PLAIN = (bool, int, float, complex, str, bytes)
_DEEPEST = 4
"""Containers inside containers that are looked into."""


def kept_beside(module: nn.Module) -> dict[str, Any]:
    """By attribute of the module and its parts, something that is another thing once it changes.

    Torch's own parts keep nothing.
    """
    return {
        ".".join(filter(None, (part, name))): _seen(value)
        for part, each in module.named_modules()
        if not type(each).__module__.startswith("torch.nn.")
        for name, value in vars(each).items()
        if name not in TORCHS
    }


def other_entry(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The first attribute that was there and has changed; a text without one."""
    found = (name for name, value in after.items() if before.get(name, value) != value)
    return next(found, "")


def _seen(value: Any, deep: int = _DEEPEST) -> Any:
    if isinstance(value, torch.Tensor):
        return digest(value)
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, torch.Generator):
        return digest(value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, Mapping) and deep:
        return [(repr(key), _seen(each, deep - 1)) for key, each in value.items()]
    if isinstance(value, list | tuple | deque) and deep:
        return [_seen(each, deep - 1) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    return repr(value) if type(value) in _PLAIN else None

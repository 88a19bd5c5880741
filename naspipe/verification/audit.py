"""Observe user code in a plain loop, so that a difference is reported with its likely reason.

A run and its plain loop differ if user code has effects that the pipeline does not track: a
gradient for a tensor outside the layers, a forward that changes its own parameters or buffers, or a
hook. These are not necessarily errors, so observations are reported only with a difference.

Code that keeps state outside of parameters and buffers gives the bits of the plain loop as long as
nothing is resumed. To detect it, the loop makes layers again before one of its first steps, and
then calls user code for other items in between.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from naspipe.data.loaders import digest
from naspipe.jobs.losses import HOOKS, TORCHS
from naspipe.machine.determinism import kept_draws
from naspipe.verification.plain_layer import NORMS
from naspipe.worker.layers.held_tensors import held_tensors, leaves_of

Hint = tuple[str, str]
"""The label of a layer, or "" for the loss, and an observation about it."""

_CALL_HOOKS = [name for name in HOOKS if "state_dict" not in name]


class Audit:
    """Collects observations of one stream; each is reported once."""

    def __init__(self) -> None:
        self._known: set[Hint] = set()
        self._new: list[Hint] = []

    def take(self) -> tuple[Hint, ...]:
        found, self._new = tuple(self._new), []
        return found

    def look_at_hooks(self, label: str, module: nn.Module) -> None:
        for name, part in module.named_modules():
            if any(getattr(part, each, None) for each in _CALL_HOOKS):
                self.note(label, f"module {name or type(part).__name__} has a hook")
        for name, parameter in module.named_parameters():
            if parameter._backward_hooks:
                self.note(label, f"parameter {name} has a hook")

    @contextmanager
    def forward(self, label: str, module: nn.Module) -> Iterator[None]:
        """Note the parameters and buffers that a layer call within the context changes."""
        before = {name: (id(each), each._version) for name, each in _tensors(module)}
        yield
        for name, each in _tensors(module):
            if before.pop(name, None) != (id(each), each._version):
                self.note(label, f"its forward changes {name}")
        for name in before:
            self.note(label, f"its forward removes {name}")

    def look_at_loss(
        self, name: str, loss: object, value: torch.Tensor, inside: Collection[int]
    ) -> None:
        """Note the leaves of a loss's graph that no layer has.

        Args:
            name: name of the loss in messages.
            loss: the user's loss, which is searched for the owner of a leaf.
            value: the loss of one pass.
            inside: the ``id`` of each parameter and buffer of the layers.
        """
        outside = {id(leaf): leaf for leaf in leaves_of([value]) if id(leaf) not in inside}
        if not outside:
            return
        held = {id(tensor): path for path, tensor in held_tensors(loss, name)}
        for key, leaf in outside.items():
            where = held.get(key, "something outside the layers and the loss")
            shape = list(leaf.shape)
            self.note("", f"a gradient reaches a tensor of shape {shape} held by {where}")

    def note(self, label: str, text: str) -> None:
        if (label, text) not in self._known:
            self._known.add((label, text))
            self._new.append((label, text))


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in module.named_parameters():
        yield f"parameter {name}", parameter
    for prefix, part in module.named_modules():
        for key, buffer in part._buffers.items():
            if buffer is not None and not isinstance(part, NORMS):
                yield f"buffer {prefix}.{key}" if prefix else f"buffer {key}", buffer


STEPS_BEFORE = 2
"""Number of steps that the plain loop trains before it makes layers again."""

HINT = (
    "code that remembers something outside of parameters, buffers and optimizer state (before step "
    "{step} the plain loop made layers again from these, and then called them for other items, too)"
)
"""Explanation of differences from that step on."""

_PLAIN = (bool, int, float, complex, str, bytes)
_DEEPEST = 4
"""Maximum nesting depth of containers that are compared."""


def disturb(call: Callable[..., Any], *tensors: torch.Tensor) -> None:
    """Call user code with other values, as another subnet would, and ignore the result."""
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if on_gpu else ()
    with kept_draws(), torch.random.fork_rng(devices), torch.no_grad(), suppress(Exception):
        call(*map(_other, tensors))


def _other(tensor: torch.Tensor) -> torch.Tensor:
    """Reverse the order of the items, and halve floating-point values but not indices."""
    other = tensor.detach().flip(0) if tensor.dim() else tensor.detach().clone()
    return other.mul_(0.5) if other.is_floating_point() else other


def changed_attributes(before: Mapping[str, Any], module: nn.Module) -> Iterator[str]:
    """Yield the attributes whose values differ from those that :func:`attributes` returned."""
    now = attributes(module)
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield name


def attributes(module: nn.Module) -> Mapping[str, Any]:
    """Return, for each attribute name, an object that changes when the attribute's value does.

    Parameters, buffers and tensors that share their memory are omitted, as are attributes of
    torch's own modules, whose state is entirely in a checkpoint.
    """
    own = {each.untyped_storage()._cdata for each in (*module.parameters(), *module.buffers())}
    return {
        ".".join(filter(None, (part, name))): _seen(value, own)
        for part, each in module.named_modules()
        if not type(each).__module__.startswith("torch.nn.")
        for name, value in vars(each).items()
        if name not in TORCHS
    }


def _seen(value: Any, own: Collection[int], depth: int = _DEEPEST) -> Any:
    """Return an object that changes with a value; ``own`` is the memory of a layer's tensors."""
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
    """Return the repr of a plain value, else None, because other reprs may have an address."""
    return repr(value) if type(value) in _PLAIN else None

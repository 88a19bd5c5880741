"""Candidates of a space without memory for their tensors, each made once however many blocks
have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from naspipe.config.space import Space
from naspipe.planning.cost import first_of_kind
from naspipe.runtime.layers.layer_store import tensors_of
from naspipe.runtime.layers.module_copies import is_hooked
from naspipe.runtime.sketching.unfilled import Unfilled

_PLAIN = (int, float, complex, str, bytes, bool, type(None))


class SketchedLayers:
    """The candidates of a space on torch's meta device.

    To be used in a process of its own: what a factory leaves behind would be on that device.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._keys = _keys(space)
        self._modules: dict[Hashable, nn.Module | None] = {}
        self._handed_out: dict[Hashable, str] = {}
        self._owners: dict[int, tuple[int, int]] = {}
        self._hooked: set[tuple[int, int]] = set()
        self._memory: list[StorageWeakRef] = []
        """That of all tensors; while it is referred to, no other is called by its number."""
        self.shared: list[tuple[str, tuple[int, int], tuple[int, int]]] = []
        """Of tensors that two candidates have: ``parameter`` or ``buffer``, and which they are."""

    def key(self, block: int, candidate: int) -> Hashable:
        """The same for candidates that the same factory makes."""
        return self._keys[block][candidate]

    def module(self, block: int, candidate: int) -> nn.Module | None:
        """A candidate; None where its factory does not work without memory."""
        key = self.key(block, candidate)
        if key not in self._modules:
            factory = self._space.blocks[block].candidates[candidate]
            look = partial(self._look, (block, candidate))
            self._modules[key], self._handed_out[key] = _without_memory(factory, look)
        return self._modules[key]

    def handed_out(self, block: int, candidate: int) -> str:
        """What the factory does not make anew each time; see :func:`_in_common`."""
        self.module(block, candidate)
        return self._handed_out[self.key(block, candidate)]

    def has_tensor_hooks(self, block: int, candidate: int) -> bool:
        """Return True if the factory registers hooks on parameters or buffers.

        :meth:`module` no longer has them, as the tensors of the meta device are others.
        """
        self.module(block, candidate)
        return (block, candidate) in self._hooked

    def _look(self, here: tuple[int, int], module: nn.Module) -> None:
        """Note whose memory it is; two parameters in one place are shared, too."""
        if is_hooked(module):
            self._hooked.add(here)
        for what, tensor in tensors_of(module):
            memory = tensor.untyped_storage()
            self._memory.append(StorageWeakRef(memory))  # type: ignore[no-untyped-call]
            owner = self._owners.setdefault(memory._cdata, here)
            if owner != here:
                self.shared.append((what, owner, here))


def _without_memory(
    factory: Callable[[], Any], look: Callable[[nn.Module], None]
) -> tuple[nn.Module | None, str]:
    """A module on torch's meta device, and what another one would have of this one.

    It is looked at as the factory made it; a real one where that cannot be made there.
    """
    for device in ("meta", "cpu"):
        # Whatever is wrong is said of the real one.
        with suppress(Exception), torch.device(device), Unfilled():
            module = factory()
            if not isinstance(module, nn.Module):
                break
            look(module)
            handed_out = _in_common(module, factory) if any(tensors_of(module)) else ""
            return (module.to("meta") if device == "meta" else None), handed_out
    return None, ""


def _in_common(module: nn.Module, factory: Callable[[], Any]) -> str:
    """``module`` or part of it, or ``memory`` alone; empty where a factory makes all anew.

    A tensor that nothing writes may have its memory from outside.
    """
    other = factory()
    tensors = {id(each) for _, each in tensors_of(module)}
    if any(id(each) in tensors for _, each in tensors_of(other)):
        return "module"
    places = {_place(each) for _, each in tensors_of(module)}
    written = (each for _, each in tensors_of(other) if each.requires_grad)
    return "memory" if any(_place(each) in places for each in written) else ""


def _place(tensor: torch.Tensor) -> int:
    """Where its memory is; one that has none is told apart by what stands for it."""
    memory = tensor.untyped_storage()
    return memory.data_ptr() or memory._cdata


def _keys(space: Space) -> list[list[Hashable]]:
    """Of each candidate; factories that occur in a block more than once are told apart there."""
    known: dict[int, list[Hashable]] = {}
    twins = first_of_kind(space)
    for block in sorted(set(twins)):
        seen: Counter[Hashable] = Counter()
        known[block] = []
        for factory in space.blocks[block].candidates:
            key = call_key(factory)
            known[block].append((key, seen[key]))
            seen[key] += 1
    return [known[twin] for twin in twins]


def call_key(value: Any) -> Hashable:
    """What is equal for functions, and what they are called with, that do the same."""
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, tuple):
        return tuple, *map(call_key, value)
    if isinstance(value, partial):
        options = sorted(value.keywords.items())
        return (
            partial,
            call_key(value.func),
            call_key(value.args),
            *((n, call_key(v)) for n, v in options),
        )
    if isinstance(value, FunctionType):
        inner = [_held(cell) for cell in value.__closure__ or ()]
        defaults = [value.__defaults__, *sorted((value.__kwdefaults__ or {}).items())]
        return (
            FunctionType,
            value.__code__,
            id(value.__globals__),
            *inner,
            *map(call_key, defaults),
        )
    return id(value)


def _held(cell: Any) -> Hashable:
    try:
        return call_key(cell.cell_contents)
    except ValueError:  # of a variable that has no value yet
        return id(cell)

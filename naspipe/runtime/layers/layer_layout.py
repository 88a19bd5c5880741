"""Where each tensor of a layer lies in the layer's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import nn

from naspipe.core.config import Recipe
from naspipe.core.errors import ConfigError
from naspipe.core.rules import RECIPES, OwnStep
from naspipe.mixed.alphas import Alpha
from naspipe.runtime.devices.host_arena import ALIGNMENT, round_up
from naspipe.runtime.layers.optimizers import make_optimizer
from naspipe.runtime.layers.own_steps import GROUP, group_with, take_step
from naspipe.runtime.layers.ports import Layer, Place


class StateSizes:
    """How many bytes each tensor of an optimizer's state takes, learnt from a real step.

    Tensors without dimensions (Adam's ``step``) are left out: they stay where the optimizer
    made them. Sizes are learnt once for each shape, strides, dtype and kind of a parameter, and
    for each way in which layers and parameter groups step.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._known: dict[object, Mapping[str, int]] = {}

    def of(
        self, parameter: torch.Tensor, own: OwnStep = RECIPES, group: int = 0
    ) -> Mapping[str, int]:
        """Bytes by the names of the state, in their order; ``group`` is the parameter's."""
        kind = type(parameter) if isinstance(parameter, Alpha) else nn.Parameter
        key = (parameter.shape, parameter.stride(), parameter.dtype, kind, own, group)
        if key not in self._known:
            self._known[key] = self._learn(parameter, kind, own, group)
        return self._known[key]

    def _learn(
        self, like: torch.Tensor, kind: type[nn.Parameter], own: OwnStep, group: int
    ) -> Mapping[str, int]:
        zeros = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype).zero_()
        parameter = kind(zeros)
        parameter.grad = torch.ones_like(zeros)
        optimizer = make_optimizer(self._recipe, [parameter], own, lambda _: group)
        take_step(optimizer, own, own.every - 1, self._recipe.lr)  # one that changes the layer
        state = sorted(optimizer.state[parameter].items())
        return {name: span_bytes(value) for name, value in state if is_moved(value)}


class _Parameter(NamedTuple):
    parameter: nn.Parameter

    def get(self) -> torch.Tensor | None:
        return self.parameter

    def bind(self, tensor: torch.Tensor) -> None:
        self.parameter.data = tensor


class _Buffer(NamedTuple):
    owner: nn.Module
    key: str

    def get(self) -> torch.Tensor | None:
        return self.owner._buffers.get(self.key)

    def bind(self, tensor: torch.Tensor) -> None:
        self.owner._buffers[self.key] = tensor


class _State(NamedTuple):
    optimizer: torch.optim.Optimizer
    parameter: nn.Parameter
    key: str

    def get(self) -> torch.Tensor | None:
        value = self.optimizer.state.get(self.parameter, {}).get(self.key)
        return value if is_moved(value) else None

    def bind(self, tensor: torch.Tensor) -> None:
        self.optimizer.state[self.parameter][self.key] = tensor


class Slot(NamedTuple):
    """The part of the blob that one tensor has.

    It starts at a multiple of 512 bytes, unless the tensor began inside of its storage: then it
    is as far from such a multiple as it was, because alignment may decide over bits.
    """

    name: str
    offset: int
    nbytes: int
    place: Place
    is_shared: bool
    """Whether other tensors of the layer may have bytes of it too."""
    is_buffer: bool


class Blob:
    """Memory that a layer's tensors are views of: uint8, a multiple of 512 bytes."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.address = memory.data_ptr()
        self._typed: dict[torch.dtype, torch.Tensor] = {}

    def view(self, slot: Slot, like: torch.Tensor) -> torch.Tensor:
        """A tensor like another, at a slot's bytes.

        Views share one version counter, and a buffer's change in the forward would invalidate what
        a backward saved of the others: ``data`` has its own. Parameters keep theirs, and autograd
        never sees an optimizer's state.
        """
        typed = self._typed.get(like.dtype)
        if typed is None:
            typed = self._typed[like.dtype] = self.memory.view(like.dtype)
        start = typed.storage_offset() + slot.offset // like.itemsize
        view = typed.as_strided(like.shape, like.stride(), start)
        return view.data if slot.is_buffer else view


def lay_out(layer: Layer, sizes: StateSizes) -> tuple[list[Slot], int]:
    """A slot for every tensor that the layer has or will have, and the size of them all."""
    slots: list[Slot] = []
    end = 0
    for region in _regions(layer):
        first = min(start_byte(tensor) for _, _, tensor in region) // ALIGNMENT * ALIGNMENT
        for name, place, tensor in region:
            offset, nbytes = end + start_byte(tensor) - first, span_bytes(tensor)
            is_buffer = isinstance(place, _Buffer)
            slots.append(Slot(name, offset, nbytes, place, len(region) > 1, is_buffer))
        end = round_up(max(slot.offset + slot.nbytes for slot in slots[-len(region) :]))
    if layer.optimizer is not None:
        for name, parameter in trained_parameters(layer):
            group = int(group_with(parameter, layer.optimizer).get(GROUP, 0))
            for key, nbytes in sizes.of(parameter, layer.own_step, group).items():
                place = _State(layer.optimizer, parameter, key)
                slots.append(Slot(f"optimizer/{name}/{key}", end, nbytes, place, False, False))
                end += round_up(nbytes)
    return slots, end


_Named = tuple[str, Place, torch.Tensor]


def _regions(layer: Layer) -> list[list[_Named]]:
    """Parameters and buffers, those in one storage together: they keep their distances."""
    found: dict[int, list[_Named]] = {}
    for name, place in _places(layer):
        tensor = place.get()
        if tensor is None:
            continue
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            raise ConfigError(
                f"layer {layer.label}: expected {name} to be an ordinary dense tensor, found one "
                f"that is sparse or a lazy view; copy it when the layer is made"
            )
        address = tensor.untyped_storage().data_ptr()
        found.setdefault(address or -len(found) - 1, []).append((name, place, tensor))
    return list(found.values())


def _places(layer: Layer) -> Iterator[tuple[str, Place]]:
    for name, parameter in layer.parameters.items():
        yield f"param/{name}", _Parameter(parameter)
    for prefix, owner in layer.module.named_modules():
        for key in owner._buffers:
            yield buffer_name(prefix, key), _Buffer(owner, key)


def trained_parameters(layer: Layer) -> list[tuple[str, nn.Parameter]]:
    """The parameters that the layer's optimizer steps, by name."""
    if layer.optimizer is None:
        return []
    stepped = {id(p) for group in layer.optimizer.param_groups for p in group["params"]}
    return [(name, p) for name, p in layer.parameters.items() if id(p) in stepped]


def buffer_name(prefix: str, key: str) -> str:
    """How errors call a buffer of the submodule ``prefix``."""
    return f"buffer/{prefix}.{key}" if prefix else f"buffer/{key}"


def is_moved(value: object) -> bool:
    """Whether a value of an optimizer's state moves with its layer."""
    return isinstance(value, torch.Tensor) and value.dim() > 0


def start_byte(tensor: torch.Tensor) -> int:
    """Where in its storage a tensor begins, in bytes."""
    return int(tensor.storage_offset()) * tensor.itemsize


def span_bytes(tensor: torch.Tensor) -> int:
    """From a tensor's first byte to its last, in bytes."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((int(size) - 1) * int(stride) for size, stride in steps)
    return (last + 1) * tensor.itemsize

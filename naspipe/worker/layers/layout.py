"""The layout of a layer's tensors in one block of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.recipe import Recipe
from naspipe.config.rules import RECIPES, OwnStep
from naspipe.machine.host_arena import ALIGNMENT, round_up
from naspipe.mixed.architecture import Alpha
from naspipe.worker.layers.optimizers import make_optimizer
from naspipe.worker.layers.own_steps import GROUP, is_moved, take_step
from naspipe.worker.layers.stored_layer import StoredLayer


class StateSizes:
    """The size in bytes of each tensor of an optimizer's state, measured with a real step.

    Tensors without dimensions, such as Adam's ``step``, are excluded: they stay where the optimizer
    created them. Sizes are measured once for each shape, strides, dtype and kind of a parameter,
    and for each way in which layers and parameter groups step.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._known: dict[object, Mapping[str, int]] = {}

    def of(
        self, parameter: torch.Tensor, own: OwnStep = RECIPES, group: int = 0
    ) -> Mapping[str, int]:
        """Return sizes in bytes by the keys of the state; ``group`` is the parameter's group."""
        kind = type(parameter)
        kind = kind if issubclass(kind, Alpha) else nn.Parameter
        key = (parameter.shape, parameter.stride(), parameter.dtype, kind, own, group)
        known = self._known.get(key)
        if known is None:
            shape, stride = parameter.shape, parameter.stride()
            zeros = torch.empty_strided(shape, stride, dtype=parameter.dtype).zero_()
            like = kind(zeros)
            like.grad = torch.ones_like(zeros)
            optimizer = make_optimizer(self._recipe, [like], own, lambda _: group)
            take_step(optimizer, own, own.every - 1, self._recipe.lr)  # changes the layer
            state = sorted(optimizer.state[like].items())
            known = {name: span_bytes(value) for name, value in state if is_moved(value)}
            self._known[key] = known
        return known


class Slot(NamedTuple):
    """The part of the blob that is assigned to one tensor.

    It starts at a multiple of 512 bytes, unless the tensor had an offset in its storage: it then
    keeps its offset from such a multiple, because the alignment may affect the result.
    """

    name: str
    key: str  # the tensor's key in the module or in the optimizer's state
    number: int
    """The tensor's number. A tensor with two names has two slots with the same number."""
    offset: int
    nbytes: int
    is_shared: bool = False
    """Whether other tensors of the layer may share its bytes."""
    is_buffer: bool = False


class TensorForm(NamedTuple):
    """The dtype, shape and strides of a tensor."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorForm:
        return cls(tensor.dtype, tensor.shape, tensor.stride())


class Blob:
    """The memory of which a layer's tensors are views: uint8, a multiple of 512 bytes."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self._typed: dict[torch.dtype, tuple[torch.Tensor, int]] = {}

    def view(self, slot: Slot, form: TensorForm) -> torch.Tensor:
        """Return a tensor of the given form that occupies a slot.

        Views share one version counter, so changing a buffer in a forward would invalidate other
        tensors saved for a backward; ``data`` has its own counter. Parameters keep their counters,
        and autograd never uses the optimizer state.
        """
        dtype, shape, stride = form
        if dtype not in self._typed:
            whole = self.memory.view(dtype)
            self._typed[dtype] = whole, int(whole.storage_offset())
        whole, start = self._typed[dtype]
        view = whole.as_strided(shape, stride, start + slot.offset // dtype.itemsize)
        return view.data if slot.is_buffer else view


@dataclass(slots=True)
class Layout:
    """The slots of all tensors that a layer has or will have."""

    parameters: list[tuple[Slot, nn.Parameter]] = field(default_factory=list)
    buffers: list[tuple[str, nn.Module, dict[str, Slot]]] = field(default_factory=list)
    """The prefix of each module, with or without buffers, and the slots by buffer name."""
    states: list[tuple[str, nn.Parameter, dict[str, Slot]]] = field(default_factory=list)
    """The name of each parameter that is stepped, and the slots by the keys of its state."""
    nbytes: int = 0


def lay_out(layer: StoredLayer, sizes: StateSizes) -> Layout:
    """Assign slots to all tensors of a layer."""
    layout = Layout()
    modules = list(layer.module.named_modules())
    found: list[tuple[str, str, torch.Tensor]] = [
        (f"param/{name}", "", each) for name, each in layer.parameters.items()
    ]
    for prefix, module in modules:
        for key, buffer in module._buffers.items():
            if buffer is not None:
                found.append((buffer_name(prefix, key), key, buffer))
    slots = _place(layer.label, found, layout)
    layout.parameters = list(zip(slots, layer.parameters.values(), strict=False))
    left = iter(slots[len(layout.parameters) :])
    for prefix, module in modules:
        here = [key for key, buffer in module._buffers.items() if buffer is not None]
        layout.buffers.append((prefix, module, {key: next(left) for key in here}))
    if layer.optimizer is not None:
        _add_states(layer, layer.optimizer, sizes, layout)
    return layout


def _place(
    label: str, found: Sequence[tuple[str, str, torch.Tensor]], layout: Layout
) -> list[Slot]:
    """Return a slot for each name, key and tensor. Tensors in one storage keep their distances."""
    regions: dict[int, list[tuple[int, int]]] = {}
    keys: list[int] = []
    spans: list[tuple[int, int]] = []
    for name, _, tensor in found:
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            raise ConfigError(
                f"layer {label}: expected {name} to be an ordinary dense tensor, found one "
                f"that is sparse or a lazy view; copy it when the layer is made"
            )
        keys.append(tensor.untyped_storage().data_ptr() or -len(regions) - 1)
        spans.append((start_byte(tensor), span_bytes(tensor)))
        regions.setdefault(keys[-1], []).append(spans[-1])
    begins: dict[int, int] = {}
    for key, region in regions.items():
        begins[key] = layout.nbytes - min(region)[0] // ALIGNMENT * ALIGNMENT
        layout.nbytes = round_up(begins[key] + max(map(sum, region)))
    numbers: dict[int, int] = {}
    return [
        Slot(
            name,
            own,
            numbers.setdefault(id(tensor), len(numbers)),
            begins[key] + start,
            nbytes,
            len(regions[key]) > 1,
            bool(own),
        )
        for (name, own, tensor), key, (start, nbytes) in zip(found, keys, spans, strict=True)
    ]


def _add_states(
    layer: StoredLayer, optimizer: torch.optim.Optimizer, sizes: StateSizes, layout: Layout
) -> None:
    groups = optimizer.param_groups
    group_of = {id(p): int(group.get(GROUP, 0)) for group in groups for p in group["params"]}
    number = -1  # distinct from all other numbers
    for name, parameter in layer.parameters.items():
        if id(parameter) not in group_of:
            continue
        slots: dict[str, Slot] = {}
        kept = sizes.of(parameter, layer.own_step, group_of[id(parameter)])
        for key, nbytes in kept.items():
            slots[key] = Slot(f"optimizer/{name}/{key}", key, number, layout.nbytes, nbytes)
            layout.nbytes += round_up(nbytes)
            number -= 1
        layout.states.append((name, parameter, slots))


def buffer_name(prefix: str, key: str) -> str:
    return f"buffer/{prefix}.{key}" if prefix else f"buffer/{key}"


def start_byte(tensor: torch.Tensor) -> int:
    """Return the offset of a tensor in its storage, in bytes."""
    return int(tensor.storage_offset()) * tensor.itemsize


def span_bytes(tensor: torch.Tensor) -> int:
    """Return the distance from a tensor's first byte to its end, in bytes."""
    if tensor.is_contiguous():
        return int(tensor.nbytes)
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((int(size) - 1) * int(stride) for size, stride in steps)
    return (last + 1) * tensor.itemsize

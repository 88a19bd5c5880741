"""One layer's bytes in one piece of memory, so that it can be moved between host and device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch

from naspipe.config.errors import InvariantError, NaspipeError
from naspipe.machine.host_arena import HostArena
from naspipe.worker.layers.kept_state import NEW, grown, swapped_misfit
from naspipe.worker.layers.layout import (
    Blob,
    Slot,
    StateSizes,
    TensorForm,
    buffer_name,
    lay_out,
    span_bytes,
    start_byte,
)
from naspipe.worker.layers.own_steps import is_moved
from naspipe.worker.layers.stored_layer import StoredLayer

Handed = TypeVar("Handed", torch.Tensor, torch.Tensor | None)
_NOWHERE = torch.empty(0, dtype=torch.uint8)
_NOTHING: dict[str, Any] = {}


_Bound = tuple[Slot, torch.Tensor, dict[str, Any] | None]
"""A present tensor and the dict that holds it by the slot's key; None for a parameter."""


class LayerMemory:
    """A layer's parameters, buffers and optimizer state as views of one blob.

    The blob is in host memory at first. Once the layer has been on a device, its tensors stay views
    of its memory there, which comes (``to_device``) and goes (``leave_device``). Graphs stay valid:
    what they hold has its bytes again when the layer is back. Code that reads a layer that may be
    away calls its ``at_hand`` first, which binds it to host memory.

    Parameters stay the same objects; shapes, strides and shared memory are kept. Gradients are not
    part of the blob, nor are optimizer states without dimensions, numbers or None. There is room
    for all optimizer state from the beginning, but state that has not been made stays absent. All
    methods are for the thread that computes.

    Args:
        layer: the layer, in host memory.
        sizes: of its optimizer's state.
        arena: where its host memory comes from.

    Raises:
        HostMemoryError: if the arena has no room for it.
        ConfigError: if a parameter or buffer is not an ordinary tensor, such as a sparse one.
    """

    def __init__(self, layer: StoredLayer, sizes: StateSizes, arena: HostArena) -> None:
        self.label = layer.label
        self._layout = lay_out(layer, sizes)
        self.state_bytes = self._layout.nbytes
        """The size in host memory and on a device: a multiple of 512."""
        self._optimizer = layer.optimizer
        self._forms: dict[int, TensorForm] = {}
        """By the tensors' numbers, as are the views."""
        self.host = arena.allocate(self.state_bytes)
        """Its host memory; empty while the layer is on another stage."""
        self._host_views: dict[int, torch.Tensor] = {}
        self._device_views: dict[int, torch.Tensor] = {}
        self._blob = Blob(self.host)
        self.piece: torch.Tensor | None = None
        """Its memory on the device, once it has been there."""
        self._is_absent = False
        """Whether the tensors are views of a piece without memory."""
        bound, unknown = self._look()
        self._move_in(self._outside(bound))
        self._refuse(unknown)
        layer.at_hand = self._come_home

    def to_device(self, piece: torch.Tensor) -> None:
        """Note that ``host`` has been copied to the layer's piece of memory on the device."""
        if self._blob.memory is piece:
            self._blob, self._is_absent = Blob(piece), False
        else:
            self._rebind(piece)
        self.piece = piece

    def leave_device(self) -> None:
        """The piece loses its memory, and changes since the last save are lost."""
        self._is_absent = True

    def apart(self, tensor: Handed) -> Handed:
        """Return a tensor that stays when the layer leaves: copied if in its device memory."""
        if self.piece is None or tensor is None:
            return tensor
        if tensor.untyped_storage()._cdata != self.piece.untyped_storage()._cdata:
            return tensor
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    def _come_home(self) -> None:
        """Bind the tensors to host memory, unless the layer is on the device."""
        if self._is_absent:
            self._rebind(self.host)

    def leave(self) -> torch.Tensor:
        """Give up the host memory, because another stage takes the layer over.

        Its tensors must not be touched until :meth:`come_back`.
        """
        host, self.host = self.host, _NOWHERE
        self._host_views = {}
        return host

    def come_back(self, arena: HostArena) -> None:
        """Get host memory again, with arbitrary bytes, if the layer was away."""
        if self.host is _NOWHERE:
            self.host = arena.allocate(self.state_bytes)
            self._blob, self._is_absent = Blob(self.host), False
            bound, _ = self._look()
            _bind(bound, self._views(bound))

    def adopt_state(self) -> None:
        """Move in what was made outside the blob; called after an update, before a save.

        That is optimizer state that torch made or replaced, and buffers that a forward replaced.

        Raises:
            ConfigError: if a buffer is new, grew, or was replaced while it shares memory.
        """
        bound, unknown = self._look()
        strays = self._outside(bound)
        for slot, _, _ in strays:
            if slot.is_shared:
                raise self._misfit(slot.name, "was replaced, and shares its memory with others")
        self._move_in(strays)
        self._refuse(unknown)

    def _refuse(self, unknown: Sequence[str]) -> None:
        if unknown:
            raise self._misfit(unknown[0], NEW)

    def _look(self) -> tuple[list[_Bound], list[str]]:
        """Return all present tensors, and the names of those that move but have no slot."""
        layout, unknown = self._layout, list[str]()
        bound: list[_Bound] = [(slot, parameter, None) for slot, parameter in layout.parameters]
        for prefix, module, slots in layout.buffers:
            for key, buffer in module._buffers.items():
                if buffer is None:
                    continue
                if slot := slots.get(key):
                    bound.append((slot, buffer, module._buffers))
                else:
                    unknown.append(buffer_name(prefix, key))
        kept: dict[Any, dict[str, Any]] = self._optimizer.state if self._optimizer else {}
        for name, parameter, slots in layout.states:
            state = kept.get(parameter, _NOTHING)
            for key, value in state.items():
                if slot := slots.get(key):
                    if is_moved(value):
                        bound.append((slot, value, state))
                elif is_moved(value):
                    unknown.append(f"optimizer/{name}/{key}")
        return bound, unknown

    def _outside(self, bound: Iterable[_Bound]) -> list[_Bound]:
        start = self._blob.memory.data_ptr()
        return [
            (slot, tensor, holder)
            for slot, tensor, holder in bound
            if tensor.numel()
            and (tensor.data_ptr() != start + slot.offset or span_bytes(tensor) > slot.nbytes)
        ]

    def _move_in(self, strays: Sequence[_Bound]) -> None:
        """Copy tensors, including gaps between their elements, and bind the copies."""
        for slot, tensor, _ in strays:
            if (nbytes := span_bytes(tensor)) > slot.nbytes:
                raise self._misfit(slot.name, grown(slot.nbytes, nbytes))
            self._forms[slot.number] = TensorForm.of(tensor)
            for known in (self._host_views, self._device_views):
                known.pop(slot.number, None)
        views = self._views(strays)
        for (slot, tensor, _), view in zip(strays, views, strict=True):
            if tensor.is_contiguous():
                view.copy_(tensor.detach())
            else:
                raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
                raw.set_(tensor.untyped_storage(), start_byte(tensor), (span_bytes(tensor),), (1,))
                self._blob.memory[slot.offset :][: raw.numel()].copy_(raw)
        _bind(strays, views)

    def _rebind(self, memory: torch.Tensor) -> None:
        if memory.numel() != self.state_bytes:
            raise InvariantError(
                f"layer {self.label}: expected memory of {self.state_bytes} bytes, "
                f"found {memory.numel()}"
            )
        bound, _ = self._look()
        if lost := [slot.name for slot, _, _ in self._outside(bound)]:
            raise InvariantError(
                f"layer {self.label} was moved while {', '.join(lost)} lay outside of its memory; "
                f"call adopt_state, and save, before"
            )
        self._blob, self._is_absent = Blob(memory), False
        _bind(bound, self._views(bound))

    def _views(self, bound: Iterable[_Bound]) -> list[torch.Tensor]:
        """Return each tensor's part of the blob; one object under two names stays one."""
        blob, forms, found = self._blob, self._forms, list[torch.Tensor]()
        known = self._host_views if blob.memory is self.host else self._device_views
        for slot, tensor, _ in bound:
            view = known.get(slot.number)
            if view is None:
                form = forms.get(slot.number) or TensorForm.of(tensor)
                if slot.nbytes:
                    view = blob.view(slot, form)
                else:  # resize_() of an empty view would take others' memory
                    device = blob.memory.device
                    view = torch.empty_strided(
                        form.shape, form.stride, dtype=form.dtype, device=device
                    )
                known[slot.number] = view
            found.append(view)
        return found

    def _misfit(self, name: str, what: str) -> NaspipeError:
        if name.startswith("optimizer/"):
            return InvariantError(f"layer {self.label}: {name} {what}")
        return swapped_misfit(self.label, name, what)


def _bind(bound: Iterable[_Bound], views: Iterable[torch.Tensor]) -> None:
    for (slot, tensor, holder), view in zip(bound, views, strict=True):
        if holder is None:
            tensor.data = view
        else:
            holder[slot.key] = view

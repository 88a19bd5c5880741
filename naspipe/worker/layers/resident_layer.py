"""A layer in a single block of memory, which can be copied between host and device."""

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
"""A slot, its present tensor, and the dict that holds the tensor; None for a parameter."""


class LayerMemory:
    """A layer's parameters, buffers and optimizer state as views of one blob.

    The blob is initially in host memory. Once the layer has been on a device, its tensors remain
    views of its device memory, which is valid from ``to_device`` until ``leave_device``. Graphs
    stay valid, because the tensors that they hold have their values again after the next load. Code
    that reads a layer that may not be resident first calls its ``at_hand``, which binds the layer
    to host memory.

    Parameters remain the same objects; shapes, strides and shared memory are kept. Gradients are
    not part of the blob, nor are optimizer states without dimensions, numbers or None. Memory for
    all optimizer state is reserved from the beginning, but state that has not been created stays
    absent. All methods must be called on the computing thread.

    Args:
        layer: the layer, in host memory.
        sizes: the sizes of its optimizer's state.
        arena: allocates its host memory.

    Raises:
        HostMemoryError: if the arena has no room for the layer.
        ConfigError: if a parameter or buffer is not an ordinary tensor, such as a sparse one.
    """

    def __init__(self, layer: StoredLayer, sizes: StateSizes, arena: HostArena) -> None:
        self.label = layer.label
        self._layout = lay_out(layer, sizes)
        self.state_bytes = self._layout.nbytes
        """Size in bytes in host memory and on a device: a multiple of 512."""
        self._optimizer = layer.optimizer
        self._forms: dict[int, TensorForm] = {}
        """Forms by the numbers of the tensors, like the views."""
        self.host = arena.allocate(self.state_bytes)
        """The layer's host memory; empty while the layer is on another stage."""
        self._host_views: dict[int, torch.Tensor] = {}
        self._device_views: dict[int, torch.Tensor] = {}
        self._blob = Blob(self.host)
        self.piece: torch.Tensor | None = None
        """The layer's memory on the device; None before its first load."""
        self._is_absent = False
        """Whether the tensors are views of a piece that has no memory now."""
        bound, unknown = self._look()
        self._move_in(self._outside(bound))
        self._refuse(unknown)
        layer.at_hand = self._come_home

    def to_device(self, piece: torch.Tensor) -> None:
        """Bind the tensors to ``piece``, the device memory to which ``host`` has been copied."""
        if self._blob.memory is piece:
            self._blob, self._is_absent = Blob(piece), False
        else:
            self._rebind(piece)
        self.piece = piece

    def leave_device(self) -> None:
        """Mark the piece as without memory; changes since the last save are lost."""
        self._is_absent = True

    def apart(self, tensor: Handed) -> Handed:
        """Return a tensor that outlives the layer's residence, copied if in its device memory."""
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
        """Return the host memory to be freed, because the layer moves to another stage.

        The layer's tensors must not be used until :meth:`come_back`.
        """
        host, self.host = self.host, _NOWHERE
        self._host_views = {}
        return host

    def come_back(self, arena: HostArena) -> None:
        """Allocate host memory with arbitrary contents again, if the layer was away."""
        if self.host is _NOWHERE:
            self.host = arena.allocate(self.state_bytes)
            self._blob, self._is_absent = Blob(self.host), False
            bound, _ = self._look()
            _bind(bound, self._views(bound))

    def adopt_state(self) -> None:
        """Move tensors that are outside the blob into it; called after an update, before a save.

        These are optimizer state that torch created or replaced, and buffers that a forward
        replaced.

        Raises:
            ConfigError: if a buffer is new, grew, or was replaced although it shared memory.
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
        """Return all present tensors, and the names of movable ones without a slot."""
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
        """Copy tensors into the blob, including gaps between elements, and bind the copies."""
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
        """Return each tensor's view of the blob; an object with two names gets a single view."""
        blob, forms, found = self._blob, self._forms, list[torch.Tensor]()
        known = self._host_views if blob.memory is self.host else self._device_views
        for slot, tensor, _ in bound:
            view = known.get(slot.number)
            if view is None:
                form = forms.get(slot.number) or TensorForm.of(tensor)
                if slot.nbytes:
                    view = blob.view(slot, form)
                else:  # resize_() of an empty view would use memory of other tensors
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

"""One layer's bytes in one piece, so that it can be moved between host and device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from naspipe.core.errors import ConfigError, InvariantError, NaspipeError
from naspipe.runtime.devices.host_arena import HostArena
from naspipe.runtime.layers.layer_layout import (
    Blob,
    Slot,
    StateSizes,
    buffer_name,
    is_moved,
    lay_out,
    span_bytes,
    start_byte,
    trained_parameters,
)
from naspipe.runtime.layers.ports import Layer

_NOWHERE = torch.empty(0, dtype=torch.uint8)
_Bound = tuple[Slot, torch.Tensor]


class LayerMemory:
    """A layer's parameters, buffers and optimizer state as views of one blob.

    The blob is in host memory at first, and in device memory between ``to_device`` and
    ``to_host``. Parameters stay the same objects; shapes and strides are kept, and so is which
    tensors share memory. Gradients are not part of it, nor are optimizer states that have no
    dimensions, are numbers or are None. There is room for all optimizer state from the
    beginning, but what the optimizer has not made stays absent.

    ``to_device`` and ``to_host`` give the layer's tensors other memory without autograd noticing:
    a backward that is still to come would silently take wrong values. So the caller drops
    the graph first, or leaves the layer where it is. For the thread that computes.

    Args:
        layer: the layer, in host memory.
        sizes: what its optimizer's state takes.
        arena: where its host memory comes from.

    Raises:
        HostMemoryError: when the arena has no room for it.
        ConfigError: when a parameter or buffer is no ordinary tensor, such as a sparse one.
    """

    def __init__(self, layer: Layer, sizes: StateSizes, arena: HostArena) -> None:
        self.label = layer.label
        self._owners = list(layer.module.named_modules())
        self._trained = trained_parameters(layer)
        self._optimizer = layer.optimizer
        self._slots, self._size = lay_out(layer, sizes)
        self._known = {slot.name for slot in self._slots}
        self._host = arena.allocate(self._size)
        self._blob = Blob(self._host)
        self._move_in(self._outside(self._bound()))
        self.adopt_state()

    @property
    def state_bytes(self) -> int:
        """What the layer takes in host memory, and on a device: a multiple of 512."""
        return self._size

    @property
    def host(self) -> torch.Tensor:
        """The layer's host memory, the same until it leaves; empty while it is away."""
        return self._host

    def to_device(self, blob: torch.Tensor) -> None:
        """Rebind everything to device memory, into which ``host`` has been copied.

        Raises:
            InvariantError: when the blob has another size, or a tensor lies outside of the old one.
        """
        self._rebind(blob)

    def to_host(self) -> None:
        """Rebind everything to host memory, into which the device memory has been saved.

        Raises:
            InvariantError: when a tensor lies outside of the device memory, so was not saved.
        """
        self._rebind(self._host)

    def leave(self) -> torch.Tensor:
        """Give up the host memory, in which the layer is: another stage takes it over.

        Its tensors are not to be touched until :meth:`come_back`.
        """
        host, self._host = self._host, _NOWHERE
        return host

    def come_back(self, arena: HostArena) -> None:
        """Have host memory again, if the layer was away; the bytes of its tensors are any."""
        if self._host is _NOWHERE:
            self._host = arena.allocate(self._size)
            self._blob = Blob(self._host)
            _bind(self._bound(), self._blob)

    def adopt_state(self) -> None:
        """Move in what was made outside of the blob: to be called after a WRITE, before a save.

        That is optimizer state that torch made or replaced, and buffers that a forward replaced.

        Raises:
            ConfigError: when a buffer is new, grew, or was replaced while it shares memory.
            InvariantError: when the optimizer made state that its first step did not show.
        """
        strays = self._outside(self._bound())
        for slot, _ in strays:
            if slot.is_shared:
                raise self._misfit(slot.name, "was replaced, and shares its memory with others")
        self._move_in(strays)
        for name in self._names():
            if name not in self._known:
                raise self._misfit(name, "was not there when the layer was made")

    def _bound(self) -> list[_Bound]:
        """The slots that have a tensor now, and that tensor."""
        return [(slot, each) for slot in self._slots if (each := slot.place.get()) is not None]

    def _outside(self, bound: Sequence[_Bound]) -> list[_Bound]:
        """Those whose tensor is elsewhere."""
        start = self._blob.address
        return [
            (slot, tensor)
            for slot, tensor in bound
            if tensor.data_ptr() != start + slot.offset and tensor.numel()
        ]

    def _move_in(self, bound: Sequence[_Bound]) -> None:
        """Copy tensors, gaps between their elements included, and bind the copies."""
        for slot, tensor in bound:
            nbytes = span_bytes(tensor)
            if nbytes > slot.nbytes:
                raise self._misfit(slot.name, f"grew from {slot.nbytes} to {nbytes} bytes")
            if not tensor.is_contiguous():
                raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
                raw.set_(tensor.untyped_storage(), start_byte(tensor), (nbytes,), (1,))
                self._blob.memory[slot.offset :][:nbytes].copy_(raw)
        for (slot, tensor), view in zip(bound, _views(bound, self._blob), strict=True):
            if tensor.is_contiguous():
                view.copy_(tensor.detach())
            slot.place.bind(view)

    def _rebind(self, memory: torch.Tensor) -> None:
        if memory.numel() != self._size:
            raise InvariantError(
                f"layer {self.label}: expected memory of {self._size} bytes, found {memory.numel()}"
            )
        bound = self._bound()
        if lost := [slot.name for slot, _ in self._outside(bound)]:
            raise InvariantError(
                f"layer {self.label} was moved while {', '.join(lost)} lay outside of its memory; "
                f"call adopt_state, and save, before"
            )
        self._blob = Blob(memory)
        _bind(bound, self._blob)

    def _names(self) -> Iterator[str]:
        """Names of all buffers and optimizer states that there are now and that move."""
        for prefix, owner in self._owners:
            for key, buffer in owner._buffers.items():
                if buffer is not None:
                    yield buffer_name(prefix, key)
        if self._optimizer is not None:
            for name, parameter in self._trained:
                for key, value in self._optimizer.state.get(parameter, {}).items():
                    if is_moved(value):
                        yield f"optimizer/{name}/{key}"

    def _misfit(self, name: str, what: str) -> NaspipeError:
        if name.startswith("optimizer/"):
            return InvariantError(f"layer {self.label}: {name} {what}")
        return ConfigError(
            f"layer {self.label}: {name} {what}; a layer that is swapped keeps the buffers that it "
            f"was made with, at their sizes: register them all when it is made, each with "
            f"memory of its own"
        )


def _bind(bound: Sequence[_Bound], blob: Blob) -> None:
    """Bind slots to views of a blob."""
    for (slot, _), view in zip(bound, _views(bound, blob), strict=True):
        slot.place.bind(view)


def _views(bound: Sequence[_Bound], blob: Blob) -> list[torch.Tensor]:
    """Of each slot its part of a blob; what was one object under two names stays one."""
    views: dict[int, torch.Tensor] = {}
    for slot, tensor in bound:
        if id(tensor) not in views:
            views[id(tensor)] = blob.view(slot, tensor)
    return [views[id(tensor)] for _, tensor in bound]

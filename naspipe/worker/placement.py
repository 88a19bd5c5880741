"""Where a stage's layers and tensors live: always on its device, or only while they are needed.

:class:`Placement` keeps every layer on the device. :class:`SwappedPlacement` keeps layers in host
memory and copies them to the device and back, as the residency manager decides, within a budget.
"""

from __future__ import annotations

import enum
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch

from naspipe.config.errors import InvariantError, NaspipeError, reason
from naspipe.config.ids import LayerId, WorkerId
from naspipe.config.recipe import Recipe
from naspipe.engine.events import LayerLoaded, LayerSaved
from naspipe.machine.cuda import count_gpus, record_end
from naspipe.machine.device_waits import Wait, count, per_block, wait_for
from naspipe.machine.host_arena import HostArena
from naspipe.machine.out_of_memory import LayerUse
from naspipe.machine.ports import Copy, Device, Mark
from naspipe.wire.tensor_codec import copy_to
from naspipe.worker.layers.layout import StateSizes
from naspipe.worker.layers.resident_layer import Handed, LayerMemory
from naspipe.worker.layers.stored_layer import StoredLayer

CLOSE_SECONDS = 10.0
"""How long copies that are under way at the end may take."""


class SwapError(NaspipeError):
    """A layer could not be copied between host and device."""


class SwapKind(enum.StrEnum):
    """The direction of a copy: to the device, or to the host."""

    LOADED = "loaded"
    SAVED = "saved"


Finished = LayerLoaded | LayerSaved


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was copied in one direction, and how long the copies took."""

    nbytes: int = 0
    nanoseconds: int = 0
    copies: int = 0

    @property
    def bytes_per_second(self) -> float:
        return self.nbytes * 1e9 / self.nanoseconds if self.nanoseconds else 0.0


class _Job(NamedTuple):
    layer: LayerId
    memory: LayerMemory
    blob: torch.Tensor
    copy: Copy


class Swapper:
    """Loads and saves layers in two lanes, each in the order of the requests.

    Which layer is copied, and when, is decided elsewhere. Nothing waits and there is no thread: the
    device copies while it computes, and is asked between blocks which copies are over. If the
    context is left without an exception, the copies under way are finished.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._blobs: dict[LayerId, torch.Tensor] = {}
        self._copying: dict[LayerId, SwapKind] = {}
        self._lanes = {kind: deque[_Job]() for kind in SwapKind}
        self._traffic = {kind: Traffic() for kind in SwapKind}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._finish()

    @property
    def loaded(self) -> Traffic:
        return self._traffic[SwapKind.LOADED]

    @property
    def saved(self) -> Traffic:
        return self._traffic[SwapKind.SAVED]

    @property
    def left_seconds(self) -> float:
        """When to ask again whether a copy is over; infinite if none is under way."""
        return min(
            (lane[0].copy.left_seconds for lane in self._lanes.values() if lane), default=math.inf
        )

    def holds(self, layer: LayerId) -> bool:
        return layer in self._blobs

    def load(self, layer: LayerId, memory: LayerMemory) -> None:
        """Start copying a layer to the device; it is there when ``take_finished`` says so.

        Raises:
            DeviceMemoryError: if the device has no room for it.
        """
        if layer in self._blobs:
            raise InvariantError(f"layer {memory.label} was loaded, but is on the device already")
        if (piece := memory.piece) is None:
            piece = self._device.allocate(memory.state_bytes)
        else:
            self._device.refill(piece)
        self._blobs[layer] = piece
        self._start(SwapKind.LOADED, layer, memory)

    def save(self, layer: LayerId, memory: LayerMemory) -> None:
        """Start copying a layer to host memory; nothing may write it until that is done."""
        self._check_resting("saved", layer, memory)
        memory.adopt_state()
        self._start(SwapKind.SAVED, layer, memory)

    def evict(self, layer: LayerId, memory: LayerMemory) -> None:
        """Free a layer's device memory at once; changes since the last save are lost."""
        self._check_resting("evicted", layer, memory)
        memory.leave_device()
        self._device.free(self._blobs.pop(layer))

    def take_finished(self) -> list[Finished]:
        """Return the copies that ended since the last call; loaded layers can be used from now on.

        Raises:
            SwapError: if a copy failed; the device's exception is its cause.
        """
        finished = list[Finished]()
        for kind, lane in self._lanes.items():
            while lane and self._is_over(kind):
                finished.append(self._settle(kind, lane.popleft()))
        return finished

    def _is_over(self, kind: SwapKind) -> bool:
        """Whether the oldest copy of a lane is over. One that failed is removed from the lane."""
        try:
            return self._lanes[kind][0].copy.is_over()
        except Exception as error:
            raise self._failure(kind, self._lanes[kind].popleft().memory, error) from error

    def _settle(self, kind: SwapKind, job: _Job) -> Finished:
        del self._copying[job.layer]
        if kind is SwapKind.LOADED:
            job.memory.to_device(job.blob)
        before = self._traffic[kind]
        self._traffic[kind] = Traffic(
            before.nbytes + job.blob.numel(),
            before.nanoseconds + job.copy.nanoseconds,
            before.copies + 1,
        )
        told = LayerLoaded if kind is SwapKind.LOADED else LayerSaved
        return told(time.monotonic_ns(), job.layer)

    def _start(self, kind: SwapKind, layer: LayerId, memory: LayerMemory) -> None:
        blob = self._blobs[layer]
        try:
            if kind is SwapKind.LOADED:
                copy = self._device.copy_in(memory.host, blob)
            else:
                copy = self._device.copy_out(blob, memory.host)
        except Exception as error:
            raise self._failure(kind, memory, error) from error
        self._copying[layer] = kind
        self._lanes[kind].append(_Job(layer, memory, blob, copy))

    def _check_resting(self, what: str, layer: LayerId, memory: LayerMemory) -> None:
        if layer not in self._blobs:
            raise InvariantError(f"layer {memory.label} was {what}, but is not on the device")
        if layer in self._copying:
            raise InvariantError(
                f"layer {memory.label} was {what} before it was told to be {self._copying[layer]}"
            )

    def _failure(self, kind: SwapKind, memory: LayerMemory, error: Exception) -> SwapError:
        way = "to" if kind is SwapKind.LOADED else "from"
        return SwapError(
            f"layer {memory.label}: copying its {memory.state_bytes} bytes {way} device "
            f"{self._device.name} failed: {reason(error)}"
        )

    def _finish(self) -> None:
        """Wait for the copies under way; they are not reported."""
        deadline = time.monotonic() + CLOSE_SECONDS
        for kind, lane in self._lanes.items():
            while lane:
                if self._is_over(kind):
                    lane.popleft()
                elif time.monotonic() > deadline:
                    left = (job.layer for lane in self._lanes.values() for job in lane)
                    copying = ", ".join(f"{layer}" for layer in sorted(left))
                    raise SwapError(
                        f"device {self._device.name}: copies of the layers {copying} did not end "
                        f"within {CLOSE_SECONDS:g} s of closing"
                    )
                else:
                    time.sleep(min(lane[0].copy.left_seconds, CLOSE_SECONDS))


def device_name(device: str, worker: WorkerId) -> str:
    """Return the device of one worker; ``cuda`` distributes the workers over the GPUs in turn."""
    if device != "cuda":
        return device
    return f"cuda:{worker % max(1, count_gpus())}"


class Placement:
    """Every layer is on the device, ``torch_device``, from the time it is made."""

    shares_memory = False
    """Whether a layer's memory is given to other layers while the layer is away."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self.may_lose_graphs = torch_device.type != "cpu"
        """Whether graphs may be dropped when memory is short."""
        self._is_gpu = torch_device.type == "cuda"
        self._blocks = 0
        self._queued: Mark = None
        """The end of the last block in the device's queue."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a leaf with the same values, strides and ``requires_grad`` on the device."""
        if tensor.device == self.torch_device:
            return tensor
        count(Wait.FIELD)
        moved = tensor.detach().to(self.torch_device)
        return moved.requires_grad_(tensor.requires_grad)

    def receive(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor from another stage on the device, with the same strides and alignment."""
        return tensor if tensor.device == self.torch_device else copy_to(tensor, self.torch_device)

    def finish_block(self) -> None:
        """A block has been queued: wait until the one before it is done.

        So a GPU computes a block while the host handles the results of the one before, and times
        are late by at most one block.
        """
        self._blocks += 1
        before, self._queued = self._queued, self._mark()
        self._wait(before)

    def _mark(self) -> Mark:
        return record_end(torch.cuda.current_stream(self.torch_device)) if self._is_gpu else None

    def _wait(self, mark: Mark) -> None:
        if mark is not None:
            wait_for(mark, Wait.BLOCK)

    def adopt(self, layer: LayerId, stored: StoredLayer) -> None:
        if self.torch_device.type != "cpu":
            stored.move(self.torch_device)

    def make_room(self, nbytes: int) -> None:
        """Make torch's allocator hold this much free memory, for work that must not stop half-way.

        Raises:
            torch.OutOfMemoryError: if there is not enough.
        """
        if self.torch_device.type != "cpu":
            torch.empty(nbytes, dtype=torch.uint8, device=self.torch_device)

    def leave(self, layer: LayerId, is_sent: Callable[[], bool]) -> None:
        """A layer is sent to another stage; its memory is free as soon as ``is_sent()``."""

    def expect(self, layer: LayerId) -> None:
        """A layer from another stage is about to be copied in."""

    def settle(self, layer: LayerId) -> None:
        """A layer from another stage was copied in."""

    def forget(self, layer: LayerId) -> None:
        """A layer that left is no longer kept; if it comes back, it is adopted anew."""

    def load(self, layer: LayerId) -> None:
        raise InvariantError(f"layer {layer}: this stage has no memory budget")

    def save(self, layer: LayerId) -> None:
        self.load(layer)

    def evict(self, layer: LayerId) -> None:
        self.load(layer)

    def apart(self, layer: LayerId, tensors: Iterable[Handed]) -> tuple[Handed, ...]:
        """Return a block's outputs in memory that stays when the layer is evicted."""
        return tuple(tensors)

    def layer_use(self, layers: Iterable[StoredLayer]) -> LayerUse:
        """Return what the stage's layers, all of which are given, take on the device now."""
        tensors = (value for stored in layers for _, value in stored.tensors())
        return LayerUse(sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor)))

    @property
    def left_seconds(self) -> float:
        """When to call ``take_finished`` again; infinite if nothing is being copied."""
        return math.inf

    def take_finished(self) -> Sequence[Finished]:
        """Return the layers that were loaded or saved since the last call."""
        return ()

    def measured(self) -> dict[str, Any]:
        return {"blocks": self._blocks, "waits_per_block": per_block(self._blocks)}


class SwappedPlacement(Placement):
    """Layers live in host memory, and on the device while they are needed.

    Args:
        device: where blocks are computed, with its budget.
        recipes: of each stream; optimizer state moves with its layer.
        limits: the budget and the smallest possible one, for the report of a shortage.
        host_limit_bytes: how much host memory layers may take; None for no limit.
        permanent: streams and blocks whose layers stay on the device.
    """

    shares_memory = True

    def __init__(
        self,
        device: Device,
        recipes: Sequence[Recipe],
        limits: LayerUse,
        host_limit_bytes: int | None,
        permanent: Collection[tuple[int, int]] = (),
    ) -> None:
        super().__init__(device.torch_device)
        self.may_lose_graphs = True  # an emulated device may be short of memory as a GPU may
        self._device = device
        self._limits = limits
        self._sizes = [StateSizes(recipe) for recipe in recipes]
        self._arena = HostArena(device.torch_device.type != "cpu", host_limit_bytes)
        self._swapper = Swapper(device)
        self._permanent = frozenset(permanent)
        self._memories: dict[LayerId, LayerMemory] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._swapper)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)  # type: ignore[arg-type]

    def _mark(self) -> Mark:
        return self._device.mark()

    def _wait(self, mark: Mark) -> None:
        self._device.wait(mark)

    def adopt(self, layer: LayerId, stored: StoredLayer) -> None:
        if self.torch_device.type != "cpu":
            stored.move_copies(self.torch_device)
        self._memories[layer] = LayerMemory(stored, self._sizes[layer.stream], self._arena)

    def leave(self, layer: LayerId, is_sent: Callable[[], bool]) -> None:
        if layer[:2] not in self._permanent:
            self._arena.give_back(self._memories[layer].leave(), is_sent)

    def expect(self, layer: LayerId) -> None:
        """Give the layer host memory again; a permanent layer is received in place."""
        if layer[:2] in self._permanent:
            return
        if self._swapper.holds(layer):
            raise InvariantError(
                f"layer {layer}: its newest version came from another stage, but an older one is "
                f"on the device"
            )
        self._memories[layer].come_back(self._arena)

    def settle(self, layer: LayerId) -> None:
        self._memories[layer].adopt_state()

    def forget(self, layer: LayerId) -> None:
        del self._memories[layer]

    def load(self, layer: LayerId) -> None:
        self._swapper.load(layer, self._memories[layer])

    def save(self, layer: LayerId) -> None:
        self._swapper.save(layer, self._memories[layer])

    def evict(self, layer: LayerId) -> None:
        self._swapper.evict(layer, self._memories[layer])

    def apart(self, layer: LayerId, tensors: Iterable[Handed]) -> tuple[Handed, ...]:
        """A module may return a weight, or a part of one."""
        return tuple(map(self._memories[layer].apart, tensors))

    def layer_use(self, layers: Iterable[StoredLayer]) -> LayerUse:
        return self._limits._replace(used_bytes=self._device.used_bytes)

    @property
    def left_seconds(self) -> float:
        return self._swapper.left_seconds

    def take_finished(self) -> Sequence[Finished]:
        return self._swapper.take_finished()

    def measured(self) -> dict[str, Any]:
        leaving_bytes = self._arena.leaving_bytes
        figures = super().measured() | {
            "device_peak_bytes": self._device.peak_bytes,
            "host_bytes": self._arena.used_bytes - leaving_bytes,
            "host_leaving_bytes": leaving_bytes,
        }
        for name, traffic in (("load", self._swapper.loaded), ("save", self._swapper.saved)):
            figures[f"{name}_bytes"] = traffic.nbytes
            figures[f"{name}_bytes_per_second"] = traffic.bytes_per_second
            figures[f"{name}_copies"] = traffic.copies
        return figures

"""Placement of a stage's layers: permanently on its device, or only while they are needed.

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
"""Time limit for the copies that are still in progress at the end."""


class SwapError(NaspipeError):
    """A layer could not be copied between host and device."""


class SwapKind(enum.StrEnum):
    """The direction of a copy: to the device, or to the host."""

    LOADED = "loaded"
    SAVED = "saved"


Finished = LayerLoaded | LayerSaved


@dataclass(frozen=True, slots=True)
class Traffic:
    """Amount of data copied in one direction, and the duration of the copies."""

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

    The residency manager decides which layer is copied and when. No method blocks and no thread is
    used: the device copies while it computes, and is polled between blocks for finished copies. If
    the context exits without an exception, the copies in progress are finished.
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
        """Seconds until a copy may have finished; infinite if none is in progress."""
        return min(
            (lane[0].copy.left_seconds for lane in self._lanes.values() if lane), default=math.inf
        )

    def holds(self, layer: LayerId) -> bool:
        return layer in self._blobs

    def load(self, layer: LayerId, memory: LayerMemory) -> None:
        """Start copying a layer to the device; ``take_finished`` reports when it is ready.

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
        """Start copying a layer to host memory; it must not be written until the copy is done."""
        self._check_resting("saved", layer, memory)
        memory.adopt_state()
        self._start(SwapKind.SAVED, layer, memory)

    def evict(self, layer: LayerId, memory: LayerMemory) -> None:
        """Free a layer's device memory at once; changes since the last save are lost."""
        self._check_resting("evicted", layer, memory)
        memory.leave_device()
        self._device.free(self._blobs.pop(layer))

    def take_finished(self) -> list[Finished]:
        """Return the copies that finished since the last call; loaded layers are now usable.

        Raises:
            SwapError: if a copy failed, with the device's exception as its cause.
        """
        finished = list[Finished]()
        for kind, lane in self._lanes.items():
            while lane and self._is_over(kind):
                finished.append(self._settle(kind, lane.popleft()))
        return finished

    def _is_over(self, kind: SwapKind) -> bool:
        """Return True if the oldest copy of a lane has finished; remove the copy if it failed."""
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
        """Wait for the copies in progress without reporting them."""
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
    """Return the device of one worker; ``cuda`` assigns GPUs to workers in round-robin order."""
    if device != "cuda":
        return device
    return f"cuda:{worker % max(1, count_gpus())}"


class Placement:
    """Keeps every layer on the device, ``torch_device``, from its creation."""

    shares_memory = False
    """Whether other layers may reuse a layer's memory while it is not resident."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self.may_lose_graphs = torch_device.type != "cpu"
        """Whether graphs may be dropped if memory runs out."""
        self._is_gpu = torch_device.type == "cuda"
        self._blocks = 0
        self._queued: Mark = None
        """Marks the end of the last block in the device's queue."""

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
        """Wait for the previous block, after a new block has been queued.

        A GPU can therefore compute a block while the host handles the results of the previous one,
        and recorded times are late by at most one block.
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
        """Reserve free memory in torch's allocator, for work that must not fail half-way.

        Raises:
            torch.OutOfMemoryError: if not enough memory is available.
        """
        if self.torch_device.type != "cpu":
            torch.empty(nbytes, dtype=torch.uint8, device=self.torch_device)

    def leave(self, layer: LayerId, is_sent: Callable[[], bool]) -> None:
        """Release a layer that is sent to another stage; its memory is free once ``is_sent()``."""

    def expect(self, layer: LayerId) -> None:
        """Prepare memory for a layer from another stage that is about to be copied in."""

    def settle(self, layer: LayerId) -> None:
        """Adopt a layer from another stage after it was copied in."""

    def forget(self, layer: LayerId) -> None:
        """Forget a layer that has left; if it returns, it is adopted again."""

    def load(self, layer: LayerId) -> None:
        raise InvariantError(f"layer {layer}: this stage has no memory budget")

    def save(self, layer: LayerId) -> None:
        self.load(layer)

    def evict(self, layer: LayerId) -> None:
        self.load(layer)

    def apart(self, layer: LayerId, tensors: Iterable[Handed]) -> tuple[Handed, ...]:
        """Return a block's outputs in memory that stays valid after the layer is evicted."""
        return tuple(tensors)

    def layer_use(self, layers: Iterable[StoredLayer]) -> LayerUse:
        """Return the device memory in use by the stage's layers, all of which are passed."""
        tensors = (value for stored in layers for _, value in stored.tensors())
        return LayerUse(sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor)))

    @property
    def left_seconds(self) -> float:
        """Seconds until ``take_finished`` should be called; infinite if no copy is in progress."""
        return math.inf

    def take_finished(self) -> Sequence[Finished]:
        """Return the layers that were loaded or saved since the last call."""
        return ()

    def measured(self) -> dict[str, Any]:
        return {"blocks": self._blocks, "waits_per_block": per_block(self._blocks)}


class SwappedPlacement(Placement):
    """Keeps layers in host memory, and on the device only while they are needed.

    Args:
        device: the device that computes blocks, with its budget.
        recipes: the recipe of each stream, because optimizer state moves with its layer.
        limits: the budget and the smallest possible one, for error reports.
        host_limit_bytes: maximum host memory for layers; None for no limit.
        permanent: pairs (stream, block) whose layers stay on the device.
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
        self.may_lose_graphs = True  # an emulated device may run out of memory, like a GPU
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
        """Allocate host memory for the layer again; a permanent layer is received in place."""
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
        """Return outputs that do not alias weights; a module may return a weight or part of one."""
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

"""Moves layers between host and device beside the compute, one lane each way."""

from __future__ import annotations

import enum
import math
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

import torch

from naspipe.config.errors import InvariantError, NaspipeError, reason
from naspipe.config.ids import LayerId
from naspipe.core.events import LayerLoaded, LayerSaved
from naspipe.runtime.devices.ports import Copy, Device
from naspipe.runtime.layers.resident_layer import LayerMemory

CLOSE_SECONDS = 10.0
"""How long the copies under way at the end may last."""


class SwapError(NaspipeError):
    """A layer could not be copied between host and device."""


class SwapKind(enum.StrEnum):
    """What was done with a layer."""

    LOADED = "loaded"
    SAVED = "saved"


Finished = LayerLoaded | LayerSaved


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was copied one way, and the time that the copies took."""

    nbytes: int = 0
    nanoseconds: int = 0
    copies: int = 0

    @property
    def bytes_per_second(self) -> float:
        """The bandwidth that was reached; 0 where nothing was copied."""
        return self.nbytes * 1e9 / self.nanoseconds if self.nanoseconds else 0.0


class _Job(NamedTuple):
    layer: LayerId
    memory: LayerMemory
    blob: torch.Tensor
    copy: Copy


class Swapper:
    """Loads and saves layers in two lanes, each in the order asked for.

    Which layer, and when, is decided elsewhere. Nothing waits, and there is no thread: the device
    copies beside the compute, and is asked between blocks what is over. Left without an exception,
    it finishes what it was asked for.

    Args:
        device: where layers are loaded to.
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
        """Copied to the device, as far as ``take_finished`` has told."""
        return self._traffic[SwapKind.LOADED]

    @property
    def saved(self) -> Traffic:
        """Copied to the host, as far as ``take_finished`` has told."""
        return self._traffic[SwapKind.SAVED]

    @property
    def left_seconds(self) -> float:
        """After how long to ask again whether a copy is over; infinite while none is under way."""
        return min(
            (lane[0].copy.left_seconds for lane in self._lanes.values() if lane), default=math.inf
        )

    def holds(self, layer: LayerId) -> bool:
        """Whether a layer is on the device or on its way."""
        return layer in self._blobs

    def load(self, layer: LayerId, memory: LayerMemory) -> None:
        """Start copying a layer to the device; it is there when ``take_finished`` says so.

        Raises:
            DeviceMemoryError: when the device has no room for it.
            InvariantError: when it is on the device already, or on its way.
            SwapError: when the device refuses.
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
        """Start copying a layer to host memory; nothing may write it until that is done.

        Raises:
            InvariantError: when it is not on the device, or is being copied.
            SwapError: when the device refuses.
        """
        self._check_resting("saved", layer, memory)
        memory.adopt_state()
        self._start(SwapKind.SAVED, layer, memory)

    def evict(self, layer: LayerId, memory: LayerMemory) -> None:
        """Free a layer's device memory at once; what changed since the last save is lost.

        Raises:
            InvariantError: when it is not on the device, or is being copied.
        """
        self._check_resting("evicted", layer, memory)
        memory.leave_device()
        self._device.free(self._blobs.pop(layer))

    def take_finished(self) -> list[Finished]:
        """What was finished since the last call; layers that were loaded are there from now on.

        Raises:
            SwapError: when a copy failed; the device's exception is its cause.
        """
        finished = list[Finished]()
        for kind, lane in self._lanes.items():
            while lane and self._is_over(kind):
                finished.append(self._settle(kind, lane.popleft()))
        return finished

    def _is_over(self, kind: SwapKind) -> bool:
        """Whether the oldest copy of a lane is; one that failed is no longer under way."""
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
        """Wait for the copies under way; nobody is told of them."""
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

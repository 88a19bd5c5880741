"""Moves layers between host and device beside the compute, one lane each way."""

from __future__ import annotations

import enum
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import NamedTuple, Self

import torch

from naspipe.core.errors import InvariantError, NaspipeError, reason
from naspipe.core.ids import LayerId
from naspipe.runtime.devices.ports import Device, Mark
from naspipe.runtime.layers.resident_layer import LayerMemory

CLOSE_SECONDS = 10.0
"""How long the copies under way at the end may last."""


class SwapError(NaspipeError):
    """A layer could not be copied between host and device."""


class SwapKind(enum.StrEnum):
    """What was done with a layer."""

    LOADED = "loaded"
    SAVED = "saved"


class Finished(NamedTuple):
    """One copy that is done; times are of :func:`time.monotonic_ns`."""

    kind: SwapKind
    layer: LayerId
    start_ns: int
    end_ns: int


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
    kind: SwapKind
    layer: LayerId
    memory: LayerMemory
    blob: torch.Tensor
    after: Mark


class _Outcome(NamedTuple):
    job: _Job
    start_ns: int
    end_ns: int
    error: Exception | None


class Swapper:
    """Loads and saves layers on two worker threads, each in the order asked for.

    Which layer, and when, is decided elsewhere. All methods are for the thread that computes,
    and so is every rebinding of a layer's tensors; the workers only copy bytes. Enter it in the
    process that computes: its threads do not survive a fork. Left without an exception, it
    finishes what it was asked for; left with one, it drops what has not begun.

    Args:
        device: where layers are loaded to.
        wake: called on a worker thread after each copy, to end the compute thread's wait.
    """

    def __init__(self, device: Device, wake: Callable[[], None]) -> None:
        self._device = device
        self._wake = wake
        self._blobs: dict[LayerId, torch.Tensor] = {}
        self._copying: dict[LayerId, SwapKind] = {}
        self._outcomes: deque[_Outcome] = deque()
        self._is_dropped = threading.Event()
        self._lanes = {kind: SimpleQueue[_Job | None]() for kind in SwapKind}
        self._threads: list[threading.Thread] = []
        self._traffic = {kind: Traffic() for kind in SwapKind}

    def __enter__(self) -> Self:
        for kind, lane in self._lanes.items():
            name = f"naspipe-{kind}"
            self._threads.append(threading.Thread(target=self._work, args=(lane,), name=name))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._is_dropped.set()
        for lane in self._lanes.values():
            lane.put(None)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if error is None:
            self._check_ended()

    @property
    def loaded(self) -> Traffic:
        """Copied to the device, as far as ``take_finished`` has told."""
        return self._traffic[SwapKind.LOADED]

    @property
    def saved(self) -> Traffic:
        """Copied to the host, as far as ``take_finished`` has told."""
        return self._traffic[SwapKind.SAVED]

    def holds(self, layer: LayerId) -> bool:
        """Whether a layer is on the device or on its way."""
        return layer in self._blobs

    def load(self, layer: LayerId, memory: LayerMemory) -> None:
        """Start copying a layer to the device; it is there when ``take_finished`` says so.

        Raises:
            DeviceMemoryError: when the device has no room for it.
            InvariantError: when it is on the device already, or on its way.
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
            SwapError: when a copy failed; the worker's exception is its cause.
        """
        finished = []
        while self._outcomes:
            finished.append(self._settle(self._outcomes.popleft()))
        return finished

    def _settle(self, outcome: _Outcome) -> Finished:
        job, start_ns, end_ns, error = outcome
        if error is not None:
            raise self._failure(job, error) from error
        del self._copying[job.layer]
        if job.kind is SwapKind.LOADED:
            job.memory.to_device(job.blob)
        before = self._traffic[job.kind]
        self._traffic[job.kind] = Traffic(
            before.nbytes + job.blob.numel(),
            before.nanoseconds + end_ns - start_ns,
            before.copies + 1,
        )
        return Finished(job.kind, job.layer, start_ns, end_ns)

    def _start(self, kind: SwapKind, layer: LayerId, memory: LayerMemory) -> None:
        self._copying[layer] = kind
        blob = self._blobs[layer]
        self._lanes[kind].put(_Job(kind, layer, memory, blob, self._device.mark()))

    def _check_resting(self, what: str, layer: LayerId, memory: LayerMemory) -> None:
        if layer not in self._blobs:
            raise InvariantError(f"layer {memory.label} was {what}, but is not on the device")
        if layer in self._copying:
            raise InvariantError(
                f"layer {memory.label} was {what} before it was told to be {self._copying[layer]}"
            )

    def _failure(self, job: _Job, error: Exception) -> SwapError:
        way = "to" if job.kind is SwapKind.LOADED else "from"
        return SwapError(
            f"layer {job.memory.label}: copying its {job.blob.numel()} bytes {way} device "
            f"{self._device.name} failed: {reason(error)}"
        )

    def _check_ended(self) -> None:
        """Raise what nobody has been told of yet."""
        for job, _, _, error in self._outcomes:
            if error is not None:
                raise self._failure(job, error) from error
        if any(thread.is_alive() for thread in self._threads):
            copying = ", ".join(f"{layer}" for layer in sorted(self._copying))
            raise SwapError(
                f"device {self._device.name}: copies of the layers {copying} did not end within "
                f"{CLOSE_SECONDS:g} s of closing"
            )

    def _work(self, lane: SimpleQueue[_Job | None]) -> None:
        self._device.begin_thread()
        while self._carry_out_next(lane):
            pass

    def _carry_out_next(self, lane: SimpleQueue[_Job | None]) -> bool:
        """One job; False at the end. Nothing keeps the job's memory while the lane waits."""
        job = lane.get()
        if job is None:
            return False
        if self._is_dropped.is_set():
            return True
        error = None
        start_ns = time.monotonic_ns()
        try:
            if job.kind is SwapKind.LOADED:
                self._device.copy_in(job.memory.host, job.blob, job.after)
            else:
                self._device.copy_out(job.blob, job.memory.host, job.after)
        except Exception as caught:
            error = caught
        self._outcomes.append(_Outcome(job, start_ns, time.monotonic_ns(), error))
        self._wake()
        return True

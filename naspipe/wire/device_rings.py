"""Send task inputs between GPUs of one host through memory shared by CUDA IPC.

This path has run with several stages on one GPU, but never between GPUs; tests run it on host
memory that processes share. Each ordered pair of stages has a ring on the sender's GPU, which is
created for its first message. The sender copies tensors into the ring and waits for the copy; a
ZeroMQ header then gives their position. The receiver copies them out of the ring in its compute
queue, so its host does not wait. No kernel ever waits for another stage. If a ring is full, or no
memory is available for it, the message is sent through host memory.

A ring is released when no stage reads it any more: a stage that has ended notifies all others, and
waits until all others have notified it.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from naspipe.config.errors import TransportError
from naspipe.config.ids import WorkerId
from naspipe.machine.cuda import record_end
from naspipe.machine.device_waits import Wait, wait_for
from naspipe.machine.ports import Mark
from naspipe.machine.staging import Staging
from naspipe.wire.messages import Announcement, InputMessage, Message, Place, ReleaseMessage
from naspipe.wire.shared_rings import Positions, Rings, round_up
from naspipe.wire.tensor_codec import blank, raw_bytes
from naspipe.wire.transport import SplitTransport, ZmqTransport

_DRIVER = "libcuda.so.1"
_HANDLE_BYTES = 64
_OUT_OF_MEMORY = 2
_ENABLE_PEER_ACCESS = 1

_Address, _Size = ctypes.c_uint64, ctypes.c_size_t


class _Handle(ctypes.Structure):
    """The driver's handle type, which is passed by value."""

    _fields_ = (("data", ctypes.c_ubyte * _HANDLE_BYTES),)


_CALLS: dict[str, tuple[Any, ...]] = {
    "cuMemAlloc_v2": (ctypes.POINTER(_Address), _Size),
    "cuMemFree_v2": (_Address,),
    "cuIpcGetMemHandle": (ctypes.POINTER(_Handle), _Address),
    "cuIpcOpenMemHandle_v2": (ctypes.POINTER(_Address), _Handle, ctypes.c_uint),
    "cuIpcCloseMemHandle": (_Address,),
    "cuMemcpyAsync": (_Address, _Address, _Size, ctypes.c_void_p),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
}


class CudaMemory:
    """Memory of one GPU that other processes of the host can open; for the computing thread.

    Addresses are in bytes. Copies are queued in the thread's current queue.

    Args:
        device: the stage's GPU, which must be the current device of the thread.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.empty(1, device=device)  # creates the context in which the driver works
        try:
            driver = ctypes.CDLL(_DRIVER)
            for name, arguments in _CALLS.items():
                getattr(driver, name).argtypes = arguments
        except (OSError, AttributeError) as error:
            raise TransportError(f"{_DRIVER} cannot be used: {error}") from error
        self._driver = driver
        self._made: list[int] = []
        self._opened: list[int] = []

    def make(self, nbytes: int) -> tuple[int, bytes] | None:
        """Return the address of new memory and a handle for other processes; None if full."""
        address, handle = _Address(), _Handle()
        result = self._driver.cuMemAlloc_v2(ctypes.byref(address), nbytes)
        if result == _OUT_OF_MEMORY:
            torch.cuda.empty_cache()
            result = self._driver.cuMemAlloc_v2(ctypes.byref(address), nbytes)
        if result == _OUT_OF_MEMORY:
            return None
        self._check("cuMemAlloc", result)
        self._made.append(address.value)
        self._check("cuIpcGetMemHandle", self._driver.cuIpcGetMemHandle(handle, address))
        return address.value, bytes(handle)

    def open(self, handle: bytes) -> int:
        """Return the address in this process of memory created by another process."""
        if len(handle) != _HANDLE_BYTES:
            raise TransportError(f"expected a handle of {_HANDLE_BYTES} bytes, found {len(handle)}")
        address, theirs = _Address(), _Handle.from_buffer_copy(handle)
        opening = self._driver.cuIpcOpenMemHandle_v2
        self._check("cuIpcOpenMemHandle", opening(address, theirs, _ENABLE_PEER_ACCESS))
        self._opened.append(address.value)
        return address.value

    def copy(self, target: int, source: int, nbytes: int) -> None:
        queue = torch.cuda.current_stream(self._device).cuda_stream
        self._check("cuMemcpyAsync", self._driver.cuMemcpyAsync(target, source, nbytes, queue))

    def mark(self) -> Mark:
        """Return a mark at the end of all copies so far; None if they have already finished."""
        return record_end(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        for address in self._opened:
            self._driver.cuIpcCloseMemHandle(address)
        for address in self._made:
            self._driver.cuMemFree_v2(address)
        self._opened.clear()
        self._made.clear()

    def _check(self, call: str, result: int) -> None:
        if result:
            name = ctypes.c_char_p()
            self._driver.cuGetErrorName(result, ctypes.byref(name))
            said = (name.value or b"").decode(errors="replace") or f"error {result}"
            raise TransportError(
                f"{self._device}: {call} failed ({said}); use --set data_path=shm, which goes "
                f"through host memory"
            )


RING_BYTES = 256 << 20
"""Size in bytes of each ring, on the sender's GPU."""

MEMORY = CudaMemory
"""The class of ring memory; tests replace it by host memory."""


class DeviceTransport(SplitTransport):
    """Sends the tensors of tasks through rings on GPUs.

    Args:
        inner: the stage's sockets.
        rings: this stage's ends of the rings.
        timeout_seconds: how long to wait for the end of other stages.
    """

    def __init__(self, inner: ZmqTransport, rings: DeviceRings, timeout_seconds: float) -> None:
        super().__init__(inner, closing(rings))
        self._rings = rings
        self._timeout_seconds = timeout_seconds

    def __exit__(self, *exception: object) -> None:
        with self._stack:
            if exception[0] is None:
                self._part()

    def _send_tensors(
        self, worker: WorkerId, message: InputMessage, tensors: Sequence[torch.Tensor]
    ) -> bool:
        place = self._rings.put(worker, tensors)
        if place is not None:
            self._inner.announce(worker, message, place)
        return place is not None

    def receive(self, timeout_seconds: float) -> Message | None:
        self._rings.give_back()
        return super().receive(timeout_seconds)

    def _receive_tensors(self, message: Announcement) -> tuple[torch.Tensor | None, ...]:
        return self._rings.take(message)

    def _part(self) -> None:
        """Stop reading, and wait until no other stage reads from this one.

        This waits for all other stages, so the order in which they end does not matter.
        """
        self._rings.finish_reading()
        for other in self._rings.others:
            self._inner.release(other)
        deadline = time.monotonic() + self._timeout_seconds
        while not self._released.issuperset(self._rings.others):
            left = deadline - time.monotonic()
            if left <= 0:
                return  # the remaining stages hang, and the launcher ends the run
            message = self._inner.receive_any(left)
            if isinstance(message, ReleaseMessage):
                self._released.add(message.sender)


@dataclass(slots=True)
class _Out:
    """The writing end of a ring."""

    positions: Positions
    address: int
    handle: bytes
    """Handle of the memory; empty after it has been sent."""


class _In(NamedTuple):
    """The reading end of a ring."""

    positions: Positions
    address: int


class _Reading(NamedTuple):
    """Bytes of a ring whose copy ends before a mark."""

    mark: Mark
    positions: Positions
    position: int
    nbytes: int


class DeviceRings:
    """One worker's ends of the rings on GPUs; for the computing thread.

    Args:
        worker: the ID of this worker.
        num_workers: the number of workers.
        counters: the shared counters of the run, created before the workers were forked.
        memory: memory of this worker's GPU.
        staging: host memory for inputs that do not fit on the GPU.
    """

    def __init__(
        self,
        worker: WorkerId,
        num_workers: int,
        counters: Rings,
        memory: CudaMemory,
        staging: Staging,
    ) -> None:
        self._worker = worker
        self._counters = counters
        self._memory = memory
        self._staging = staging
        self.others = [WorkerId(other) for other in range(num_workers) if other != worker]
        self._outs: dict[WorkerId, _Out | None] = {}
        self._ins: dict[WorkerId, _In] = {}
        self._reading: deque[_Reading] = deque()

    def put(self, worker: WorkerId, tensors: Sequence[torch.Tensor]) -> Place | None:
        """Copy tensors into the ring to a worker, and return their place; None if it is full."""
        if worker not in self._outs:
            self._outs[worker] = self._make(worker)
        out = self._outs[worker]
        raws = [raw for raw in map(raw_bytes, tensors) if len(raw)]
        if out is None:
            return None
        position = out.positions.reserve(sum(round_up(len(raw)) for raw in raws))
        if position is None:
            return None
        address = out.address + out.positions.place(position)
        for raw in raws:
            self._memory.copy(address, raw.data_ptr(), len(raw))
            address += round_up(len(raw))
        if raws:
            _wait(self._memory.mark())
        place = Place(position, out.handle)
        out.handle = b""
        return place

    def take(self, message: Announcement) -> tuple[torch.Tensor | None, ...]:
        """Return copies of tensors in a worker's ring, valid for work that is queued afterwards."""
        sender, place = message.sender, message.place or Place(0)
        if place.handle and sender not in self._ins:
            address = self._memory.open(place.handle)
            self._ins[sender] = _In(self._positions(sender, self._worker), address)
        if sender not in self._ins:
            raise TransportError(f"{message.task}: its input lies in a ring that is not open here")
        ring = self._ins[sender]
        at = start = ring.positions.place(place.position)
        tensors: list[torch.Tensor | None] = []
        for entry in message.entries:
            tensor, raw = (None, None) if entry is None else blank(entry, self._allocate)
            if raw is not None and len(raw):
                if at + len(raw) > RING_BYTES:
                    raise TransportError(f"{message.task}: its input would end behind its ring")
                self._memory.copy(raw.data_ptr(), ring.address + at, len(raw))
                at += round_up(len(raw))
            tensors.append(tensor)
        mark = self._memory.mark()
        self._reading.append(_Reading(mark, ring.positions, place.position, at - start))
        self.give_back()
        return tuple(tensors)

    def give_back(self) -> None:
        """Release the bytes that have been copied out of other workers' rings."""
        while self._reading and _is_over(self._reading[0].mark):
            _, positions, position, nbytes = self._reading.popleft()
            positions.give_back(position, nbytes)

    def finish_reading(self) -> None:
        """Wait for all copies out of other workers' rings."""
        if self._reading:
            _wait(self._reading[-1].mark)
            self.give_back()

    def close(self) -> None:
        self._reading.clear()
        self._memory.close()

    def _make(self, worker: WorkerId) -> _Out | None:
        made = self._memory.make(RING_BYTES)
        return _Out(self._positions(self._worker, worker), *made) if made else None

    def _positions(self, sender: WorkerId, receiver: WorkerId) -> Positions:
        return Positions(self._counters.count_between(sender, receiver), RING_BYTES)

    def _allocate(self, nbytes: int) -> torch.Tensor:
        """Allocate memory on the GPU, or on the host if the GPU is full; the task then retries."""
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device=self._staging.device)
        except torch.OutOfMemoryError:
            return self._staging.allocate(nbytes)


def _wait(mark: Mark) -> None:
    if mark is not None:
        wait_for(mark, Wait.RING)


def _is_over(mark: Mark) -> bool:
    return mark is None or bool(mark.query())  # type: ignore[no-untyped-call]

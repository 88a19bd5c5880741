"""A GPU that holds layers while they are needed, with separate streams for copies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import torch

from naspipe.config.errors import ConfigError, reason
from naspipe.machine.device_waits import Wait, count, wait_for
from naspipe.machine.ports import Clock, DeviceBudget, Mark

NAP_SECONDS = 100e-6
"""Time that an idle stage sleeps before it polls a copy again."""


def count_gpus() -> int:
    """Return the number of CUDA devices of this process; 0 if torch was built without CUDA."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def start_cuda(device: torch.device) -> None:
    """Start CUDA in this process with ``device`` as the current GPU.

    Raises:
        ConfigError: if CUDA cannot be started.
    """
    try:
        torch.cuda.set_device(device)
        torch.cuda.init()  # type: ignore[no-untyped-call]
        # Start torch's backward thread here: it warns if its first operation is a matrix product.
        torch.ones((), device=device, requires_grad=True).exp().backward()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError, AttributeError) as error:  # depends on torch's build
        raise ConfigError(
            f"device {device}: CUDA cannot be started in a process of the run "
            f"({reason(error):.200}); see that nvidia-smi answers and that this program made no "
            f"CUDA call before, or choose --device cpu"
        ) from error


def measured_memory() -> dict[str, float]:
    """Return the peak bytes of torch's allocator in this process; empty without CUDA."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    return {
        "gpu_allocated_peak_bytes": torch.cuda.max_memory_allocated(),
        "gpu_reserved_peak_bytes": torch.cuda.max_memory_reserved(),
    }


class CudaDevice(DeviceBudget):
    """One GPU, created on the computing thread, whose current queue (a CUDA stream) is used.

    Memory is allocated by torch's caching allocator in the order of the compute queue: freed memory
    may be reused while queued kernels still access it, so a copy into newly allocated memory waits
    for the work that is in the compute queue at that time. Memory that a copy uses may be freed
    once the copy has finished.

    Args:
        index: the index of the GPU.
        budget_bytes: maximum memory of layers; ConfigError if the GPU has less.
    """

    def __init__(self, index: int, budget_bytes: int) -> None:
        super().__init__(f"cuda:{index}", budget_bytes)
        self.torch_device = torch.device("cuda", index)
        total = torch.cuda.get_device_properties(self.torch_device).total_memory
        if budget_bytes > total:
            raise ConfigError(
                f"device {self.name}: expected a budget of at most its {total} bytes, "
                f"found {budget_bytes}"
            )
        self._compute = torch.cuda.current_stream(self.torch_device)
        self._load = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        self._save = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Allocate memory on the GPU, for kernels that are queued after this call."""
        self.check_budget(nbytes)
        with torch.cuda.stream(self._compute):
            memory = torch.empty(nbytes, dtype=torch.uint8, device=self.torch_device)
        return self.count_in(memory)

    def free(self, tensor: torch.Tensor) -> None:
        """Free memory, which is reused after the kernels that are queued now."""
        self.count_out(tensor)
        tensor.untyped_storage().resize_(0)

    def refill(self, tensor: torch.Tensor) -> None:
        self.check_budget(tensor.numel())
        with torch.cuda.stream(self._compute):
            tensor.untyped_storage().resize_(tensor.numel())
        self.count_in(tensor)

    def mark(self) -> Mark:
        return record_end(self._compute)

    def copy_in(self, host: torch.Tensor, device: torch.Tensor) -> CudaCopy:
        return self._copy(host, device, self._load)

    def copy_out(self, device: torch.Tensor, host: torch.Tensor) -> CudaCopy:
        return self._copy(device, host, self._save)

    def wait(self, mark: Mark) -> None:
        if mark is not None:
            wait_for(mark, Wait.BLOCK)

    def _copy(
        self, source: torch.Tensor, target: torch.Tensor, queue: torch.cuda.Stream
    ) -> CudaCopy:
        queue.wait_stream(self._compute)
        start = _timed(queue)
        if not (source if source.is_cpu else target).is_pinned():
            count(Wait.COPY)
        with torch.cuda.stream(queue):
            target.copy_(source, non_blocking=True)
        return CudaCopy(start, _timed(queue))


class CudaCopy:
    """A copy in one of a GPU's queues, between two events."""

    left_seconds = NAP_SECONDS

    def __init__(self, start: torch.cuda.Event, end: torch.cuda.Event) -> None:
        self._start = start
        self._end = end

    def is_over(self) -> bool:
        return bool(self._end.query())  # type: ignore[no-untyped-call]

    @property
    def nanoseconds(self) -> int:
        milliseconds: float = self._start.elapsed_time(self._end)
        return round(milliseconds * 1e6)


def _timed(queue: torch.cuda.Stream) -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(queue)
    return event


def record_end(queue: torch.cuda.Stream) -> torch.cuda.Event:
    """Record an event at the end of a queue. Waiting for it sleeps, because spinning takes CPU."""
    event: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(queue)
    return event


class HostClock:
    """Clock for work that has finished when the call returns."""

    def mark(self) -> int:
        return time.perf_counter_ns()

    def between_ns(self, marks: Sequence[int]) -> list[int]:
        return [after - before for before, after in pairwise(marks)]


class CudaClock:
    """Clock for work in a GPU's current queue, including idle time of the queue."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        return _timed(torch.cuda.current_stream(self._device))

    def between_ns(self, marks: Sequence[torch.cuda.Event]) -> list[int]:
        wait_for(marks[-1], Wait.CLOCK)
        return [int(before.elapsed_time(after) * 1e6) for before, after in pairwise(marks)]


def open_clock(device: torch.device) -> Clock:
    """Return the clock of a device; for a GPU, CUDA must have been started."""
    return HostClock() if device.type == "cpu" else CudaClock(device)

"""A GPU that holds layers while they are needed; copies run in queues beside the compute's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import torch

from naspipe.config.errors import ConfigError, reason
from naspipe.machine.device_waits import Wait, count, wait_for
from naspipe.machine.ports import Clock, DeviceBudget, Mark

NAP_SECONDS = 100e-6
"""How long an idle stage sleeps before it asks again whether a copy is over."""


def count_gpus() -> int:
    """How many CUDA devices this process can use; 0 where torch was built without CUDA."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def start_cuda(device: torch.device) -> None:
    """Start CUDA in this process, with a GPU as its current one: queues and seeds are its.

    Raises:
        ConfigError: when it cannot be used here.
    """
    try:
        torch.cuda.set_device(device)
        torch.cuda.init()  # type: ignore[no-untyped-call]
        _start_backwards(device)
    except (RuntimeError, AssertionError, AttributeError) as error:  # as torch's build has it
        raise ConfigError(
            f"device {device}: CUDA cannot be started in a process of the run "
            f"({reason(error):.200}); see that nvidia-smi answers and that this program made no "
            f"CUDA call before, or choose --device cpu"
        ) from error


def _start_backwards(device: torch.device) -> None:
    """Torch's thread of backwards warns when a matrix product is the first that it asks for."""
    torch.ones((), device=device, requires_grad=True).exp().backward()  # type: ignore[no-untyped-call]


def measured_memory() -> dict[str, float]:
    """The most that torch's allocator gave out and took in this process; nothing without CUDA."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    return {
        "gpu_allocated_peak_bytes": torch.cuda.max_memory_allocated(),
        "gpu_reserved_peak_bytes": torch.cuda.max_memory_reserved(),
    }


class CudaDevice:
    """One GPU; made on the thread that computes, whose current queue (CUDA's stream) is used.

    Memory comes from torch's caching allocator, in the order of the compute's queue: a freed
    piece may be handed out again while queued kernels still use it, so a copy into fresh
    memory waits for the point that the compute had been queued up to. Memory that a copy uses may
    be freed once the copy is over.

    Args:
        index: which GPU.
        budget_bytes: the most that layers may occupy at a time.

    Raises:
        ConfigError: when the GPU has less memory than the budget.
    """

    def __init__(self, index: int, budget_bytes: int) -> None:
        self.name = f"cuda:{index}"
        self.torch_device = torch.device("cuda", index)
        total = torch.cuda.get_device_properties(self.torch_device).total_memory
        if budget_bytes > total:
            raise ConfigError(
                f"device {self.name}: expected a budget of at most its {total} bytes, "
                f"found {budget_bytes}"
            )
        self._budget = DeviceBudget(self.name, budget_bytes)
        self._compute = torch.cuda.current_stream(self.torch_device)
        self._load = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        self._save = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]

    @property
    def used_bytes(self) -> int:
        """Bytes allocated now."""
        return self._budget.used_bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were ever allocated at a time."""
        return self._budget.peak_bytes

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Memory on the GPU. Raises DeviceMemoryError beyond the budget."""
        self._budget.check(nbytes)
        with torch.cuda.stream(self._compute):
            memory = torch.empty(nbytes, dtype=torch.uint8, device=self.torch_device)
        return self._budget.add(memory)

    def free(self, tensor: torch.Tensor) -> None:
        """Give memory back, to be reused behind the kernels queued so far.

        Raises InvariantError when it is not allocated.
        """
        self._budget.remove(tensor)
        tensor.untyped_storage().resize_(0)

    def refill(self, tensor: torch.Tensor) -> None:
        """Memory as fresh as :meth:`allocate`'s. Raises DeviceMemoryError beyond the budget."""
        self._budget.check(tensor.numel())
        with torch.cuda.stream(self._compute):
            tensor.untyped_storage().resize_(tensor.numel())
        self._budget.add(tensor)

    def mark(self) -> Mark:
        """The point that the compute has been queued up to."""
        return record_end(self._compute)

    def copy_in(self, host: torch.Tensor, device: torch.Tensor) -> CudaCopy:
        """Copy to the GPU behind all that is queued now."""
        return self._copy(host, device, self._load)

    def copy_out(self, device: torch.Tensor, host: torch.Tensor) -> CudaCopy:
        """Copy to the host behind all that is queued now."""
        return self._copy(device, host, self._save)

    def wait(self, mark: Mark) -> None:
        """Wait until the compute has come to a mark."""
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
    """A copy in one of a GPU's queues, between two events of it."""

    left_seconds = NAP_SECONDS

    def __init__(self, start: torch.cuda.Event, end: torch.cuda.Event) -> None:
        self._start = start
        self._end = end

    def is_over(self) -> bool:
        """Whether the queue has come to its end."""
        return bool(self._end.query())  # type: ignore[no-untyped-call]

    @property
    def nanoseconds(self) -> int:
        """As the GPU's clock says."""
        milliseconds: float = self._start.elapsed_time(self._end)
        return round(milliseconds * 1e6)


def _timed(queue: torch.cuda.Stream) -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(queue)
    return event


def record_end(queue: torch.cuda.Stream) -> torch.cuda.Event:
    """An event at the end of a queue; waiting for it sleeps, since spinning takes a core."""
    event: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(queue)
    return event


class HostClock:
    """For work that is done when the call that asked for it returns."""

    def mark(self) -> int:
        """See :class:`Clock`."""
        return time.perf_counter_ns()

    def between_ns(self, marks: Sequence[int]) -> list[int]:
        """See :class:`Clock`."""
        return [after - before for before, after in pairwise(marks)]


class CudaClock:
    """For work in a GPU's current queue; idle time of the queue counts too.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """See :class:`Clock`."""
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def between_ns(self, marks: Sequence[torch.cuda.Event]) -> list[int]:
        """See :class:`Clock`."""
        wait_for(marks[-1], Wait.CLOCK)
        return [int(before.elapsed_time(after) * 1e6) for before, after in pairwise(marks)]


def open_clock(device: torch.device) -> Clock:
    """The clock of what a device computes; a GPU's where CUDA has been started."""
    return HostClock() if device.type == "cpu" else CudaClock(device)

"""A device in host memory, for machines without a GPU and for tests."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import MutableMapping
from contextlib import suppress

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from naspipe.runtime.devices.device_budget import DeviceBudget
from naspipe.runtime.devices.device_waits import Wait, count
from naspipe.runtime.devices.ports import Mark

POISON = 0xFF
"""Byte that memory without a layer in it begins with: a NaN in every floating-point type."""
_POISONED = 4096
"""So many bytes: filling all of it would take longer than the copy that is emulated."""

_LAZILY_FREED = getattr(mmap, "MADV_FREE", mmap.MADV_DONTNEED)

BANDWIDTH_BYTES_PER_SECOND = 12e9
LATENCY_SECONDS = 20e-6
"""What an emulated device is taken to have: about 16 lanes of PCIe 3.0."""

_LEAST_SLEEP_SECONDS = 200e-6
"""No sleep is shorter, as the system ends it up to 0.1 ms late, and each takes the processor from
the compute. What a short copy would still have lasted, the next ones of its thread last longer."""


class _Owed(threading.local):
    """By how much the copies of each thread, which is one direction, were too short so far."""

    seconds = 0.0


class EmulatedDevice:
    """A device in host memory of its own, with a budget, a bandwidth and a latency.

    Fresh and freed memory begins with poison, so that a layer used before its load or after its
    eviction shows. Copies are real and last as long as the bandwidth says; each direction
    has the whole of it.

    A piece keeps its addresses for good. Of one that was freed the system takes the pages when it
    is short of memory, and not before: to get new ones takes longer than the copy.

    Args:
        budget_bytes: the most that may be allocated at a time.
        bandwidth_bytes_per_second: of one direction.
        latency_seconds: what every copy lasts at least.
    """

    name = "cpu"
    torch_device = torch.device("cpu")

    def __init__(
        self,
        budget_bytes: int,
        bandwidth_bytes_per_second: float = BANDWIDTH_BYTES_PER_SECOND,
        latency_seconds: float = LATENCY_SECONDS,
    ) -> None:
        self._budget = DeviceBudget(self.name, budget_bytes)
        self._bandwidth_bytes_per_second = bandwidth_bytes_per_second
        self._latency_seconds = latency_seconds
        self._pages: MutableMapping[torch.Tensor, mmap.mmap] = WeakTensorKeyDictionary()
        self._owed = _Owed()

    @property
    def used_bytes(self) -> int:
        """Bytes allocated now."""
        return self._budget.used_bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were ever allocated at a time."""
        return self._budget.peak_bytes

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Poisoned memory. Raises DeviceMemoryError beyond the budget."""
        self._budget.check(nbytes)
        if not nbytes:
            return self._budget.add(torch.empty(0, dtype=torch.uint8))
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = torch.frombuffer(pages, dtype=torch.uint8)
        self._pages[memory] = pages
        memory[:_POISONED].fill_(POISON)
        return self._budget.add(memory)

    def free(self, tensor: torch.Tensor) -> None:
        """Poison the memory and give it back. Raises InvariantError when it is not allocated."""
        self._budget.remove(tensor)
        if pages := self._pages.get(tensor):
            with suppress(OSError):  # where the system knows of no such thing, the pages stay
                pages.madvise(_LAZILY_FREED)
        tensor[:_POISONED].fill_(POISON)

    def refill(self, tensor: torch.Tensor) -> None:
        """Poisoned memory again. Raises DeviceMemoryError beyond the budget."""
        self._budget.check(tensor.numel())
        self._budget.add(tensor)

    def mark(self) -> Mark:
        """None: this device computes at once."""
        return None

    def copy_in(self, host: torch.Tensor, device: torch.Tensor, after: Mark = None) -> None:
        """Copy to the device, as fast as it is meant to be."""
        self._copy(host, device)

    def copy_out(self, device: torch.Tensor, host: torch.Tensor, after: Mark = None) -> None:
        """Copy to the host, as fast as it is meant to be."""
        self._copy(device, host)

    def begin_thread(self) -> None:
        """Nothing to do: threads share host memory."""

    def wait(self, mark: Mark) -> None:
        """Nothing to wait for, as this device computes at once; counted all the same."""
        count(Wait.BLOCK)

    def _copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        count(Wait.COPY)
        start = time.monotonic()
        target.copy_(source)
        seconds = self._latency_seconds + source.numel() / self._bandwidth_bytes_per_second
        end = start + seconds + self._owed.seconds
        left = end - time.monotonic()
        if left >= _LEAST_SLEEP_SECONDS:
            time.sleep(left)  # the emulated copies themselves, not a poll
            left = end - time.monotonic()
        self._owed.seconds = max(0.0, left)

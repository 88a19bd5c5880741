"""A device in host memory, for machines without a GPU and for tests."""

from __future__ import annotations

import threading
import time

import torch

from naspipe.runtime.devices.device_budget import DeviceBudget
from naspipe.runtime.devices.device_waits import Wait, count
from naspipe.runtime.devices.ports import Mark

POISON = 0xFF
"""Byte that fresh memory holds: a NaN in every floating-point type."""
_POISONED = 1 << 16
"""So many of the first bytes: more would take longer than the copy that is emulated."""

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

    Fresh memory begins with poison, so that a layer used before its load shows; one used after its
    eviction has no memory. Copies are real and last as long as the bandwidth says; each
    direction has the whole of it.

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
        memory = torch.empty(nbytes, dtype=torch.uint8)
        memory[:_POISONED].fill_(POISON)
        return self._budget.add(memory)

    def free(self, tensor: torch.Tensor) -> None:
        """Give the memory back. Raises InvariantError when it is not allocated."""
        self._budget.remove(tensor)

    def refill(self, tensor: torch.Tensor) -> None:
        """Poisoned memory again. Raises DeviceMemoryError beyond the budget."""
        self._budget.refill(tensor)
        tensor[:_POISONED].fill_(POISON)

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

"""A device in host memory, for machines without a GPU and for tests."""

from __future__ import annotations

import mmap
import re
import time
from collections.abc import MutableMapping
from contextlib import suppress

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from naspipe.config.errors import ConfigError
from naspipe.machine.cuda import CudaDevice, count_gpus
from naspipe.machine.device_waits import Wait, count
from naspipe.machine.ports import Device, DeviceBudget, Mark

POISON = 0xFF
"""Byte that memory without a layer in it begins with: a NaN in every floating-point type."""
_POISONED = 4096
"""So many bytes: filling all of it would take longer than the copy that is emulated."""

KEPT_BYTES = 256 * 1024 * 1024
"""Of freed memory that the system may not take: telling it, and writing on what it was told of,
takes as long as the copy."""

_LAZILY_FREED = getattr(mmap, "MADV_FREE", mmap.MADV_DONTNEED)

BANDWIDTH_BYTES_PER_SECOND = 12e9
LATENCY_SECONDS = 20e-6
"""What an emulated device is taken to have: about 16 lanes of PCIe 3.0."""


class EmulatedCopy:
    """A copy that begins and ends when it is meant to.

    The bytes go at its end, so a layer that is used before it is there shows.
    """

    def __init__(
        self, source: torch.Tensor, target: torch.Tensor, start: float, seconds: float
    ) -> None:
        self._source = source
        self._target = target
        self._seconds = seconds
        self._moved_ns = 0
        self.end = start + seconds
        """As :func:`time.monotonic` has it."""

    def is_over(self) -> bool:
        """Whether its time has come; the bytes are copied then."""
        if self.left_seconds > 0:
            return False
        start_ns = time.monotonic_ns()
        self._target.copy_(self._source)
        self._moved_ns = time.monotonic_ns() - start_ns
        return True

    @property
    def left_seconds(self) -> float:
        """What is left of its time."""
        return max(0.0, self.end - time.monotonic())

    @property
    def nanoseconds(self) -> int:
        """As the bandwidth says, and what it took to move the bytes."""
        return round(self._seconds * 1e9) + self._moved_ns


class EmulatedDevice:
    """A device in host memory of its own, with a budget, a bandwidth and a latency.

    Fresh and freed memory begins with poison, so that a layer used before its load or after its
    eviction shows. Copies are real, and over when the bandwidth says; each direction has the whole
    of it.

    A piece keeps its addresses for good. When more than :data:`KEPT_BYTES` are freed, the system
    may take the pages of those that were freed first, and does when it is short of memory.

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
        self._kept: dict[int, mmap.mmap] = {}
        """Of freed pieces, by their addresses, those of which the system may not take the pages."""
        self._kept_bytes = 0
        self._free_at = {"in": 0.0, "out": 0.0}
        """When the last copy of each way is over."""

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
        tensor[:_POISONED].fill_(POISON)
        if pages := self._pages.get(tensor):
            self._kept[tensor.data_ptr()] = pages
            self._kept_bytes += len(pages)
        while self._kept_bytes > KEPT_BYTES:
            oldest = self._kept.pop(next(iter(self._kept)))
            self._kept_bytes -= len(oldest)
            with suppress(OSError):  # where the system knows of no such thing, the pages stay
                oldest.madvise(_LAZILY_FREED)

    def refill(self, tensor: torch.Tensor) -> None:
        """Poisoned memory again. Raises DeviceMemoryError beyond the budget."""
        self._budget.check(tensor.numel())
        self._budget.add(tensor)
        if kept := self._kept.pop(tensor.data_ptr(), None):
            self._kept_bytes -= len(kept)
        else:  # the system may have taken the poison, too
            tensor[:_POISONED].fill_(POISON)

    def mark(self) -> Mark:
        """None: this device computes at once."""
        return None

    def copy_in(self, host: torch.Tensor, device: torch.Tensor) -> EmulatedCopy:
        """Copy to the device, as fast as it is meant to be."""
        return self._copy("in", host, device)

    def copy_out(self, device: torch.Tensor, host: torch.Tensor) -> EmulatedCopy:
        """Copy to the host, as fast as it is meant to be."""
        return self._copy("out", device, host)

    def wait(self, mark: Mark) -> None:
        """Nothing to wait for, as this device computes at once; counted all the same."""
        count(Wait.BLOCK)

    def _copy(self, way: str, source: torch.Tensor, target: torch.Tensor) -> EmulatedCopy:
        start = max(self._free_at[way], time.monotonic())
        seconds = self._latency_seconds + source.numel() / self._bandwidth_bytes_per_second
        copy = EmulatedCopy(source, target, start, seconds)
        self._free_at[way] = copy.end
        return copy


def open_device(
    name: str,
    budget_bytes: int,
    bandwidth_bytes_per_second: float = BANDWIDTH_BYTES_PER_SECOND,
    latency_seconds: float = LATENCY_SECONDS,
) -> Device:
    """A device by name: ``cpu`` is emulated, ``cuda`` and ``cuda:N`` are GPUs.

    Looking for a GPU starts CUDA, which does not survive a fork: call this in the process
    that computes. Bandwidth and latency are the emulated device's.

    Raises:
        ConfigError: for an unknown device, one that is not here, or numbers that make no sense.
    """
    if budget_bytes <= 0:
        raise ConfigError(
            f"device {name}: expected a budget of 1 byte or more, found {budget_bytes}"
        )
    if name == "cpu":
        if not (bandwidth_bytes_per_second > 0 and latency_seconds >= 0):
            raise ConfigError(
                f"device cpu: expected a bandwidth above 0 and a latency of 0 or more, found "
                f"{bandwidth_bytes_per_second:g} bytes/s and {latency_seconds:g} s"
            )
        return EmulatedDevice(budget_bytes, bandwidth_bytes_per_second, latency_seconds)
    match = re.fullmatch(r"cuda(?::([0-9]{1,4}))?", name)
    if match is None:
        raise ConfigError(f"device {name!r:.40}: expected cpu, cuda or cuda:N")
    index, count = int(match[1] or 0), count_gpus()
    if index >= count:
        here = "no CUDA device" if count == 0 else f"cuda:0 to cuda:{count - 1}"
        raise ConfigError(f"device {name}: found {here} on this machine; choose another, or cpu")
    return CudaDevice(index, budget_bytes)

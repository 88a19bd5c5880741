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
"""Byte that fills the start of unused memory: a NaN in every floating-point type."""
_POISONED = 4096
"""Number of bytes to poison: filling all memory would take longer than the emulated copy."""

KEPT_BYTES = 256 * 1024 * 1024
"""Amount of freed memory that is not released to the system, because releasing and faulting pages
takes as long as the copy.
"""

_LAZILY_FREED = getattr(mmap, "MADV_FREE", mmap.MADV_DONTNEED)

BANDWIDTH_BYTES_PER_SECOND = 12e9
LATENCY_SECONDS = 20e-6
"""Default latency and bandwidth of an emulated device, about 16 lanes of PCIe 3.0."""


class EmulatedCopy:
    """A copy that begins and ends at its scheduled times.

    The bytes are copied at its end, so that premature use of a layer is detected.
    """

    def __init__(
        self, source: torch.Tensor, target: torch.Tensor, start: float, seconds: float
    ) -> None:
        self._source = source
        self._target = target
        self._seconds = seconds
        self._moved_ns = 0
        self.end = start + seconds
        """Scheduled end, in seconds of :func:`time.monotonic`."""

    def is_over(self) -> bool:
        """Return True if the scheduled time has passed; the bytes are then copied."""
        if self.left_seconds > 0:
            return False
        start_ns = time.monotonic_ns()
        self._target.copy_(self._source)
        self._moved_ns = time.monotonic_ns() - start_ns
        return True

    @property
    def left_seconds(self) -> float:
        return max(0.0, self.end - time.monotonic())

    @property
    def nanoseconds(self) -> int:
        """The emulated time plus the real time to copy the bytes."""
        return round(self._seconds * 1e9) + self._moved_ns


class EmulatedDevice(DeviceBudget):
    """A device in separate host memory, with a budget, a bandwidth and a latency.

    New and freed memory starts with poison, so that use of a layer before its load or after its
    eviction is detected. Copies are real, and end according to the bandwidth; each direction has
    the full bandwidth.

    Allocated memory keeps its addresses permanently. If more than :data:`KEPT_BYTES` are freed, the
    system may reclaim the pages that were freed first, and does so if it runs out of memory.

    Args:
        budget_bytes: maximum of allocated memory.
        bandwidth_bytes_per_second: bandwidth of each direction.
        latency_seconds: minimum duration of a copy.
    """

    torch_device = torch.device("cpu")

    def __init__(
        self,
        budget_bytes: int,
        bandwidth_bytes_per_second: float = BANDWIDTH_BYTES_PER_SECOND,
        latency_seconds: float = LATENCY_SECONDS,
    ) -> None:
        super().__init__("cpu", budget_bytes)
        self._bandwidth_bytes_per_second = bandwidth_bytes_per_second
        self._latency_seconds = latency_seconds
        self._pages: MutableMapping[torch.Tensor, mmap.mmap] = WeakTensorKeyDictionary()
        self._kept: dict[int, mmap.mmap] = {}
        """Freed memory whose pages the system may not reclaim, by address."""
        self._kept_bytes = 0
        self._free_at = {"in": 0.0, "out": 0.0}
        """End of the last copy in each direction."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        self.check_budget(nbytes)
        if not nbytes:
            return self.count_in(torch.empty(0, dtype=torch.uint8))
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = torch.frombuffer(pages, dtype=torch.uint8)
        self._pages[memory] = pages
        memory[:_POISONED].fill_(POISON)
        return self.count_in(memory)

    def free(self, tensor: torch.Tensor) -> None:
        """Poison the memory and release it."""
        self.count_out(tensor)
        tensor[:_POISONED].fill_(POISON)
        if pages := self._pages.get(tensor):
            self._kept[tensor.data_ptr()] = pages
            self._kept_bytes += len(pages)
        while self._kept_bytes > KEPT_BYTES:
            oldest = self._kept.pop(next(iter(self._kept)))
            self._kept_bytes -= len(oldest)
            with suppress(OSError):  # if the system does not support this, the pages are kept
                oldest.madvise(_LAZILY_FREED)

    def refill(self, tensor: torch.Tensor) -> None:
        self.check_budget(tensor.numel())
        self.count_in(tensor)
        if kept := self._kept.pop(tensor.data_ptr(), None):
            self._kept_bytes -= len(kept)
        else:  # the system may have reclaimed the poisoned page
            tensor[:_POISONED].fill_(POISON)

    def mark(self) -> Mark:
        return None

    def copy_in(self, host: torch.Tensor, device: torch.Tensor) -> EmulatedCopy:
        return self._copy("in", host, device)

    def copy_out(self, device: torch.Tensor, host: torch.Tensor) -> EmulatedCopy:
        return self._copy("out", device, host)

    def wait(self, mark: Mark) -> None:
        """Count the wait without waiting, because this device computes synchronously."""
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
    """Return a device by name: ``cpu`` is emulated, ``cuda`` and ``cuda:N`` are GPUs.

    Opening a GPU starts CUDA, which does not survive a fork, so call this in the process that
    computes. Bandwidth and latency apply to the emulated device.
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

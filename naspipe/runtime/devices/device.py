"""Devices that hold layers while they are needed, and one emulated in host memory."""

from __future__ import annotations

import re
import time
from typing import Protocol

import torch

from naspipe.core.errors import ConfigError, InvariantError, NaspipeError
from naspipe.runtime.devices.host_arena import SLAB_BYTES, HostArena

POISON = 0xFF
"""Byte that memory without a layer in it holds: a NaN in every floating-point type."""

BANDWIDTH_BYTES_PER_SECOND = 12e9
LATENCY_SECONDS = 20e-6
"""What an emulated device is taken to have: about 16 lanes of PCIe 3.0."""

Mark = torch.cuda.Event | None
"""A point in a device's compute queue; None where nothing is queued."""


class DeviceMemoryError(NaspipeError):
    """More device memory was asked for than the budget has: the ledger is wrong."""


class Device(Protocol):
    """Where layers are computed on, and how their bytes get there and back.

    ``allocate``, ``free``, ``mark`` and ``synchronize_compute`` are for the thread that computes.
    ``copy_in`` and ``copy_out`` block, and are for worker threads.
    """

    @property
    def name(self) -> str:
        """As in ``cuda:0``."""
        ...

    @property
    def torch_device(self) -> torch.device:
        """Where tensors of this device live."""
        ...

    @property
    def used_bytes(self) -> int:
        """Bytes allocated now."""
        ...

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were ever allocated at a time."""
        ...

    def allocate(self, nbytes: int) -> torch.Tensor:
        """A uint8 tensor on the device, its address a multiple of 512.

        Raises:
            DeviceMemoryError: beyond the budget.
        """
        ...

    def free(self, tensor: torch.Tensor) -> None:
        """Give memory back; ``tensor`` is the very object that ``allocate`` returned.

        Raises:
            InvariantError: when it is not, or was given back already.
        """
        ...

    def mark(self) -> Mark:
        """The point that the compute has been queued up to."""
        ...

    def copy_in(self, host: torch.Tensor, device: torch.Tensor, after: Mark = None) -> None:
        """Copy to the device; the device's memory is left alone until ``after``."""
        ...

    def copy_out(self, device: torch.Tensor, host: torch.Tensor, after: Mark = None) -> None:
        """Copy to the host what the device's memory holds at ``after``, or later."""
        ...

    def synchronize_compute(self) -> None:
        """Wait until everything that was queued for computation is done."""
        ...


class DeviceBudget:
    """Counts what is allocated on one device and refuses what is beyond the budget."""

    def __init__(self, name: str, budget_bytes: int) -> None:
        self._name = name
        self._budget_bytes = budget_bytes
        self._live: dict[int, torch.Tensor] = {}  # held, so that an id is never used twice
        self.used_bytes = 0
        self.peak_bytes = 0

    def check(self, nbytes: int) -> None:
        """Refuse what does not fit.

        Raises:
            DeviceMemoryError: beyond the budget.
        """
        if self.used_bytes + nbytes > self._budget_bytes:
            raise DeviceMemoryError(
                f"device {self._name}: the layers' budget is {self._budget_bytes} bytes, "
                f"{self.used_bytes} are used and {nbytes} more were asked for; evict first"
            )

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count new memory; returns it."""
        self._live[id(tensor)] = tensor
        self.used_bytes += tensor.numel()
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return tensor

    def remove(self, tensor: torch.Tensor) -> None:
        """Count memory as given back.

        Raises:
            InvariantError: when it is not counted now.
        """
        if self._live.pop(id(tensor), None) is None:
            raise InvariantError(
                f"device {self._name}: {tensor.numel()} bytes were freed that are not allocated"
            )
        self.used_bytes -= tensor.numel()


class EmulatedDevice:
    """A device in host memory of its own, with a budget, a bandwidth and a latency.

    Fresh and freed memory is poisoned, so that a layer used before its load or after its
    eviction shows. Copies are real and last as long as the bandwidth says; each direction
    has the whole of it.

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
        self._arena = HostArena(
            pin=False, limit_bytes=None, slab_bytes=min(budget_bytes, SLAB_BYTES)
        )
        self._bandwidth_bytes_per_second = bandwidth_bytes_per_second
        self._latency_seconds = latency_seconds

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
        return self._budget.add(self._arena.allocate(nbytes).fill_(POISON))

    def free(self, tensor: torch.Tensor) -> None:
        """Poison the memory and give it back. Raises InvariantError when it is not allocated."""
        self._budget.remove(tensor)
        self._arena.give_back(tensor.fill_(POISON), lambda: True)

    def mark(self) -> Mark:
        """None: this device computes at once."""
        return None

    def copy_in(self, host: torch.Tensor, device: torch.Tensor, after: Mark = None) -> None:
        """Copy to the device, as fast as it is meant to be."""
        self._copy(host, device)

    def copy_out(self, device: torch.Tensor, host: torch.Tensor, after: Mark = None) -> None:
        """Copy to the host, as fast as it is meant to be."""
        self._copy(device, host)

    def synchronize_compute(self) -> None:
        """Nothing to wait for: this device computes at once."""

    def _copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        start = time.monotonic()
        target.copy_(source)
        seconds = self._latency_seconds + source.numel() / self._bandwidth_bytes_per_second
        left = start + seconds - time.monotonic()
        if left > 0:
            time.sleep(left)  # the emulated copy itself, not a poll


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
    from naspipe.runtime.devices.cuda_device import CudaDevice, count_gpus

    index, count = int(match[1] or 0), count_gpus()
    if index >= count:
        here = "no CUDA device" if count == 0 else f"cuda:0 to cuda:{count - 1}"
        raise ConfigError(f"device {name}: found {here} on this machine; choose another, or cpu")
    return CudaDevice(index, budget_bytes)

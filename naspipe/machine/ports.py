"""Protocols of devices, their copies and their clocks, and the budget of a device's memory.

:class:`Device` is :class:`naspipe.machine.emulated.EmulatedDevice` or
:class:`naspipe.machine.cuda.CudaDevice`, and each has its own :class:`Copy`; :class:`Clock` is
``HostClock`` or ``CudaClock`` of :mod:`naspipe.machine.cuda`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from naspipe.config.errors import InvariantError, NaspipeError

Mark = torch.cuda.Event | None
"""A point in a device's compute queue; None if nothing is queued."""


class Copy(Protocol):
    """A copy between host memory and a device that runs concurrently with compute."""

    def is_over(self) -> bool:
        """Return True if the copy has finished, without waiting.

        Until then, both memories must not change.
        """

    @property
    def left_seconds(self) -> float:
        """Time after which to poll again."""

    @property
    def nanoseconds(self) -> int:
        """Duration of a finished copy."""


class Device(Protocol):
    """A device that computes layers, with copies between it and host memory.

    All methods must be called on the computing thread, and only ``wait`` blocks. Copies in one
    direction end in the order in which they began. ``peak_bytes`` is the maximum of ``used_bytes``
    so far.
    """

    @property
    def name(self) -> str: ...
    @property
    def torch_device(self) -> torch.device: ...
    @property
    def used_bytes(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return a uint8 tensor on the device with a separate storage, aligned to 512 bytes.

        Raise DeviceMemoryError if this exceeds the budget.
        """

    def free(self, tensor: torch.Tensor) -> None:
        """Free the memory of a tensor, which must be the object that ``allocate`` returned.

        Its views keep their metadata, but must not be used until :meth:`refill`. Raise
        InvariantError if the tensor has no memory.
        """

    def refill(self, tensor: torch.Tensor) -> None:
        """Allocate uninitialised memory for a freed tensor and its views.

        Raise DeviceMemoryError if this exceeds the budget.
        """

    def mark(self) -> Mark:
        """Return a mark at the present end of the compute queue."""

    def copy_in(self, host: torch.Tensor, device: torch.Tensor) -> Copy:
        """Start a copy to the device, after the compute that is queued now."""

    def copy_out(self, device: torch.Tensor, host: torch.Tensor) -> Copy:
        """Start a copy to the host, after the compute that is queued now."""

    def wait(self, mark: Mark) -> None:
        """Wait until the compute queue reaches a mark, so that the host does not run far ahead."""


class Clock(Protocol):
    """Measures the time between marks."""

    def mark(self) -> Any:
        """Return a mark at the end of all work so far."""

    def between_ns(self, marks: Sequence[Any]) -> list[int]:
        """Wait for the last mark, and return the nanoseconds between each mark and the next."""


class DeviceMemoryError(NaspipeError):
    """Raised if an allocation exceeds the budget, which means that the accounting is wrong."""


class DeviceBudget:
    """Base class of devices that counts allocated memory and enforces the budget."""

    def __init__(self, name: str, budget_bytes: int) -> None:
        self.name = name
        self._budget_bytes = budget_bytes
        self._live: dict[int, torch.Tensor] = {}  # keeps references, so that ids are not reused
        self.used_bytes = 0
        self.peak_bytes = 0

    def check_budget(self, nbytes: int) -> None:
        """Raise DeviceMemoryError if ``nbytes`` do not fit in the budget."""
        if self.used_bytes + nbytes > self._budget_bytes:
            raise DeviceMemoryError(
                f"device {self.name}: the layers' budget is {self._budget_bytes} bytes, "
                f"{self.used_bytes} are used and {nbytes} more were asked for; evict first"
            )

    def count_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count the memory of a tensor as allocated, and return the tensor."""
        self._live[id(tensor)] = tensor
        self.used_bytes += tensor.numel()
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return tensor

    def count_out(self, tensor: torch.Tensor) -> None:
        """Count the memory of a tensor as freed."""
        if self._live.pop(id(tensor), None) is None:
            raise InvariantError(
                f"device {self.name}: {tensor.numel()} bytes were freed that are not allocated"
            )
        self.used_bytes -= tensor.numel()

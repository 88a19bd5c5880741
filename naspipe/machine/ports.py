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
    """A copy between host memory and a device, concurrent with the compute."""

    def is_over(self) -> bool:
        """Whether the copy has ended; does not wait. Until then, both memories must not change."""

    @property
    def left_seconds(self) -> float:
        """Time after which to ask again."""

    @property
    def nanoseconds(self) -> int:
        """Duration of a copy that is over."""


class Device(Protocol):
    """Where layers are computed, and how their bytes get there and back.

    All methods are for the computing thread, and only ``wait`` waits. Copies in one direction end
    in the order in which they began. ``peak_bytes`` is the maximum of ``used_bytes`` so far.
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
        """A uint8 tensor on the device with a storage of its own, at a multiple of 512.

        Raises DeviceMemoryError beyond the budget.
        """

    def free(self, tensor: torch.Tensor) -> None:
        """Take the memory of a tensor, which must be the object that ``allocate`` returned.

        Its views keep their metadata, but must not be used until :meth:`refill`. Raises
        InvariantError if it has no memory.
        """

    def refill(self, tensor: torch.Tensor) -> None:
        """Give a freed tensor and its views uninitialised memory; DeviceMemoryError beyond the
        budget.
        """

    def mark(self) -> Mark:
        """The present end of the compute queue."""

    def copy_in(self, host: torch.Tensor, device: torch.Tensor) -> Copy:
        """Begin a copy to the device, after the compute that is queued now."""

    def copy_out(self, device: torch.Tensor, host: torch.Tensor) -> Copy:
        """Begin a copy to the host, after the compute that is queued now."""

    def wait(self, mark: Mark) -> None:
        """Wait until the compute reaches a mark, so that the host does not run far ahead."""


class Clock(Protocol):
    """Measures the time between marks."""

    def mark(self) -> Any:
        """The end of all work so far."""

    def between_ns(self, marks: Sequence[Any]) -> list[int]:
        """Nanoseconds between each mark and the next; waits for the last one."""


class DeviceMemoryError(NaspipeError):
    """An allocation exceeds the budget, so the ledger is wrong."""


class DeviceBudget:
    """Base of devices: counts allocated memory, and refuses to exceed the budget."""

    def __init__(self, name: str, budget_bytes: int) -> None:
        self.name = name
        self._budget_bytes = budget_bytes
        self._live: dict[int, torch.Tensor] = {}  # held, so that an id is never used twice
        self.used_bytes = 0
        self.peak_bytes = 0

    def check_budget(self, nbytes: int) -> None:
        """Raise DeviceMemoryError if it does not fit."""
        if self.used_bytes + nbytes > self._budget_bytes:
            raise DeviceMemoryError(
                f"device {self.name}: the layers' budget is {self._budget_bytes} bytes, "
                f"{self.used_bytes} are used and {nbytes} more were asked for; evict first"
            )

    def count_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count the memory of a tensor; returns the tensor."""
        self._live[id(tensor)] = tensor
        self.used_bytes += tensor.numel()
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return tensor

    def count_out(self, tensor: torch.Tensor) -> None:
        """Count the memory of a tensor as returned."""
        if self._live.pop(id(tensor), None) is None:
            raise InvariantError(
                f"device {self.name}: {tensor.numel()} bytes were freed that are not allocated"
            )
        self.used_bytes -= tensor.numel()

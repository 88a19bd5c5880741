"""What layers take of a device's memory, counted and limited."""

from __future__ import annotations

import torch

from naspipe.config.errors import InvariantError, NaspipeError


class DeviceMemoryError(NaspipeError):
    """More device memory was asked for than the budget has: the ledger is wrong."""


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
        """Count a tensor's memory; returns the tensor."""
        self._live[id(tensor)] = tensor
        self.used_bytes += tensor.numel()
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return tensor

    def remove(self, tensor: torch.Tensor) -> None:
        """Count a tensor's memory as given back.

        Raises:
            InvariantError: when it is not counted now.
        """
        if self._live.pop(id(tensor), None) is None:
            raise InvariantError(
                f"device {self._name}: {tensor.numel()} bytes were freed that are not allocated"
            )
        self.used_bytes -= tensor.numel()

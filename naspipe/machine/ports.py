"""What holds layers while they are needed, and what tells how long its work took.

Implementations: :class:`Device` is :class:`naspipe.machine.emulated.EmulatedDevice`
or :class:`naspipe.machine.cuda.CudaDevice`, and each has its own :class:`Copy`;
:class:`Clock` is ``HostClock`` or ``CudaClock`` of :mod:`naspipe.machine.cuda`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from naspipe.config.errors import InvariantError, NaspipeError

Mark = torch.cuda.Event | None
"""A point in a device's compute queue; None where nothing is queued."""


class Copy(Protocol):
    """Bytes on their way between host memory and a device, beside the compute."""

    def is_over(self) -> bool:
        """Whether they are there; nobody waits. Both memories are left alone until they are."""
        ...

    @property
    def left_seconds(self) -> float:
        """After how long to ask again."""
        ...

    @property
    def nanoseconds(self) -> int:
        """How long it took; for a copy that is over."""
        ...


class Device(Protocol):
    """Where layers are computed on, and how their bytes get there and back.

    All of it is for the thread that computes, and nothing but ``wait`` waits. Copies of one way are
    over in the order in which they began.
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
        """A uint8 tensor on the device with a storage of its own, its address a multiple of 512.

        Raises:
            DeviceMemoryError: beyond the budget.
        """
        ...

    def free(self, tensor: torch.Tensor) -> None:
        """Take the memory of a tensor away; ``tensor`` is the very object that ``allocate``
        returned.

        Its views stay what they are, without memory: none may be used until :meth:`refill`.

        Raises:
            InvariantError: when it is not, or has no memory.
        """
        ...

    def refill(self, tensor: torch.Tensor) -> None:
        """Give a tensor memory again, and so its views; the bytes are any.

        Raises:
            DeviceMemoryError: beyond the budget.
        """
        ...

    def mark(self) -> Mark:
        """The point that the compute has been queued up to."""
        ...

    def copy_in(self, host: torch.Tensor, device: torch.Tensor) -> Copy:
        """Begin a copy to the device, behind the compute that is queued now."""
        ...

    def copy_out(self, device: torch.Tensor, host: torch.Tensor) -> Copy:
        """Begin a copy to the host, behind the compute that is queued now."""
        ...

    def wait(self, mark: Mark) -> None:
        """Wait until the compute has come to a mark; the host is kept from running far ahead."""
        ...


class Clock(Protocol):
    """Sets marks between pieces of work, and tells how long each piece took."""

    def mark(self) -> Any:
        """The end of all work so far."""
        ...

    def between_ns(self, marks: Sequence[Any]) -> list[int]:
        """Nanoseconds between each mark and the next; waits until the last is reached."""
        ...


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

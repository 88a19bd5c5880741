"""Times of what a device computes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import torch

from naspipe.runtime.devices.device_waits import Wait, wait_for
from naspipe.runtime.devices.ports import Clock


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

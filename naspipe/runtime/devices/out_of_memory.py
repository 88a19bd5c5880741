"""What to say when a device's memory is short and nothing is left to free."""

from __future__ import annotations

import re
from typing import NamedTuple

from naspipe.config.errors import ConfigError, reason

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

_SIZE = r"([0-9]+(?:\.[0-9]+)?) (bytes|KiB|MiB|GiB)"


class DeviceFullError(ConfigError):
    """A task does not fit the device beside what is there: smaller settings are needed."""


class Shortage(NamedTuple):
    """What torch says of an allocation that failed."""

    requested_bytes: int
    """Rounded up as far as torch's message is rounded."""
    free_bytes: int
    """What could have been had, rounded down. What torch holds and does not use is left out: it
    was in pieces too small, or it would have been taken."""
    allocated_bytes: int | None
    """By this process; None where the message does not say it."""


class LayerUse(NamedTuple):
    """What a stage's layers take on its device."""

    used_bytes: int
    budget_bytes: int = 0
    """What they may take; 0 for no limit."""
    least_bytes: int = 0
    """The least budget that the stage can run with; 0 where that is not known."""


def read_shortage(text: str) -> Shortage | None:
    """Read the message of a :class:`torch.OutOfMemoryError`; None when it is another.

    Its form is that of torch's c10/cuda/CUDACachingAllocator.cpp.
    """
    requested = _size(rf"Tried to allocate {_SIZE}", text, 1)
    free = _size(rf"of which {_SIZE} is free", text, -1)
    if requested is None or free is None:
        return None
    allocated = _size(rf"{_SIZE} is allocated by PyTorch", text, 0)
    held = _size(rf"{_SIZE} is reserved by PyTorch but unallocated", text, -1) or 0
    allowed = _size(rf"{_SIZE} allowed;", text, -1)
    if allowed is not None and allocated is not None:
        free = min(free, max(0, allowed - allocated - held))
    return Shortage(requested, min(free, requested), allocated)


def _size(pattern: str, text: str, away: int) -> int | None:
    """Bytes of a size with two decimals, moved by half of the last one: up, down or not."""
    match = re.search(pattern, text)
    if match is None:
        return None
    unit = _UNITS[match[2]]
    slack = 0.005 if unit > 1 else 0.0
    return max(0, int((float(match[1]) + away * slack) * unit))


def explain_shortage(
    error: BaseException, doing: str, layers: LayerUse, kept_bytes: int
) -> DeviceFullError:
    """One line: what was under way, who holds the memory, and the budget that would have done.

    Args:
        error: what torch raised when the task was tried a second time.
        doing: the task and its block.
        layers: what the stage's layers take, and may take.
        kept_bytes: of the passes under way, as far as they are counted.
    """
    start = f"out of device memory in {doing}, also after all that can be freed was: "
    limit = f" (budget {layers.budget_bytes})" if layers.budget_bytes else ""
    holders = f"layers hold {layers.used_bytes} bytes{limit}"
    otherwise = (
        "let fewer passes be under way (--set window=N or activation_memory=BYTES), use "
        "--recompute, more stages or a smaller batch"
    )
    shortage = read_shortage(str(error))
    if shortage is None:
        return DeviceFullError(
            f"{start}{holders}, passes under way {kept_bytes}; torch says {reason(error)}; give "
            f"layers less (--memory-budget), or {otherwise}"
        )
    if shortage.allocated_bytes is not None:
        kept_bytes = max(kept_bytes, shortage.allocated_bytes - layers.used_bytes)
    found = (
        f"{start}{shortage.requested_bytes} bytes were asked for, {shortage.free_bytes} are free, "
        f"{holders}, passes under way {kept_bytes}; "
    )
    enough = layers.used_bytes + shortage.free_bytes - shortage.requested_bytes
    if enough >= max(1, layers.least_bytes):
        return DeviceFullError(
            f"{found}a memory budget of at most {enough} bytes per stage would have left this "
            f"task room: --memory-budget {enough}; or {otherwise}"
        )
    least = f"the least is {layers.least_bytes}, and " if layers.least_bytes else ""
    room = f"{enough} bytes would be left for layers" if enough > 0 else "nothing would be left"
    return DeviceFullError(f"{found}no memory budget would have done ({least}{room}); {otherwise}")

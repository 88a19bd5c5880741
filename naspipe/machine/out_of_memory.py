"""Shortages of device memory: detection, retries, and error messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import NamedTuple, ParamSpec, TypeVar

import torch

from naspipe.config.errors import ConfigError, reason

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

_SIZE = r"([0-9]+(?:\.[0-9]+)?) (bytes|KiB|MiB|GiB)"


class DeviceFullError(ConfigError):
    """Raised if a task does not fit on the device alongside its present contents."""


class Shortage(NamedTuple):
    """Contents of torch's message about a failed allocation."""

    requested_bytes: int
    """Requested bytes, rounded up by the rounding error of the message."""
    free_bytes: int
    """Available bytes, rounded down. Unused memory that torch holds is not included, because its
    pieces were too small.
    """
    allocated_bytes: int | None
    """Bytes allocated by this process; None if the message does not contain them."""


class LayerUse(NamedTuple):
    """Memory of a stage's layers on its device."""

    used_bytes: int
    budget_bytes: int = 0
    """Memory budget; 0 for no limit."""
    least_bytes: int = 0
    """Minimum budget with which the stage can run; 0 if unknown."""


def read_shortage(text: str) -> Shortage | None:
    """Parse the message of a :class:`torch.OutOfMemoryError`; None if it has a different format.

    The format is that of torch's c10/cuda/CUDACachingAllocator.cpp.
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
    """Return the bytes of a size with two decimals.

    The size is shifted by half of its last decimal: up (1), down (-1) or not (0).
    """
    match = re.search(pattern, text)
    if match is None:
        return None
    unit = _UNITS[match[2]]
    slack = 0.005 if unit > 1 else 0.0
    return max(0, int((float(match[1]) + away * slack) * unit))


def explain_shortage(
    error: BaseException, doing: str, layers: LayerUse, kept_bytes: int
) -> DeviceFullError:
    """Return an error with the active task, the users of memory, and a sufficient budget.

    Args:
        error: the error that torch raised in the second attempt of the task.
        doing: the task and its block.
        layers: memory of the stage's layers.
        kept_bytes: memory of the passes in flight, as far as it is counted.
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


_NO_HANDLE = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "ALLOCATION_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED",
    "CUDA error: out of memory",
)
"""Parts of error messages that indicate a shortage."""

_PROBE_BYTES = 1 << 30
"""A size larger than what the allocator can have cached when a stage begins."""


class _Seen:
    """State of this process's allocator."""

    refused = 0
    told = 0
    """Number of shortages that the allocator reported to the observer."""
    tells: bool | None = None
    """Whether the allocator reports shortages; None until this has been tested."""
    provoked = 0
    """Number of shortages that the test provoked."""


def refused_allocations() -> int:
    """Return how often torch's allocator had no memory, raised or not; 0 without CUDA."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    if _Seen.tells is None:
        _Seen.tells = _tells()
    return (_Seen.told if _Seen.tells else _counted()) - _Seen.provoked


def note() -> None:
    """Disregard earlier shortages when a stage begins or after a shortage was handled.

    If the reported number differs from the allocator's count, reports are no longer used.
    """
    _Seen.refused = refused_allocations()
    if _Seen.tells and _Seen.told != _counted():
        _Seen.tells = False
        _Seen.refused = refused_allocations()


def _counted() -> int:
    """Return torch's own count.

    torch computes about 200 figures for it, which takes as long as a few kernel launches.
    """
    return int(torch.cuda.memory_stats_as_nested_dict()["num_ooms"])


def _tells() -> bool:
    """Register an observer with the allocator, and return True if a provoked shortage calls it.

    Not every allocator supports this and the function is private, so any result other than one call
    disables it. The shortage is provoked by temporarily setting the memory fraction of this process
    to 0, because a request that is too large for any device would break expandable segments.
    """
    _Seen.told = before = _counted()
    try:
        torch._C._cuda_attach_out_of_memory_observer(_tell)  # type: ignore[attr-defined]
        share = torch.cuda.get_per_process_memory_fraction()
    except (AttributeError, RuntimeError):
        return False
    torch.cuda.set_per_process_memory_fraction(0.0)
    try:
        with suppress(torch.OutOfMemoryError):
            torch.empty(_PROBE_BYTES, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(share)
    _Seen.provoked = _counted() - before
    return _Seen.provoked == 1 == _Seen.told - before


def _tell(*_: int) -> None:
    _Seen.told += 1


class raising_shortages:  # noqa: N801
    """Raise an error for every shortage of memory in the context, even if torch recovers from it.

    Refused allocations are counted once, at the end. An earlier shortage that was not passed to
    :func:`note` therefore counts for this context, whose work is then repeated with the same bits.

    Raises:
        torch.OutOfMemoryError: even if torch fell back to an algorithm that needs less memory.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing; shortages are counted on exit."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        before, _Seen.refused = _Seen.refused, refused_allocations()
        if error is None and _Seen.refused != before:
            raise torch.OutOfMemoryError(
                "an operation had no memory for its workspace and took an algorithm that needs "
                "less, which may leave other bits"
            )
        if not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError):
            return
        if any(name in str(error) for name in _NO_HANDLE):
            raise torch.OutOfMemoryError(reason(error)) from error


_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


class MemoryRetry:
    """Runs functions that need device memory, and retries once after freeing memory.

    Args:
        free_memory: frees as much device memory as possible.
    """

    def __init__(self, free_memory: Callable[[], None]) -> None:
        self._free_memory = free_memory
        self.retries = 0
        """Number of retries."""

    def attempt(self, act: Callable[[], _Result]) -> _Result:
        """Call ``act`` at most twice. It must not change any state if memory runs out."""
        try:
            return act()
        except torch.OutOfMemoryError:
            pass
        note()
        # The first attempt's tensors are free only here, because its traceback held them.
        self.retries += 1
        self._free_memory()
        return act()

    def wrapped(self, act: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """Return ``act`` with a retry in each call."""

        @wraps(act)
        def attempted(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            return self.attempt(partial(act, *args, **kwargs))

        return attempted

"""Shortages of device memory: finding them, trying again, and explaining them."""

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
    """A task does not fit the device next to what it holds: smaller settings are needed."""


class Shortage(NamedTuple):
    """Content of torch's message about a failed allocation."""

    requested_bytes: int
    """Rounded up by the rounding error of the message."""
    free_bytes: int
    """What was available, rounded down. Memory that torch holds and does not use is not included:
    its pieces were too small.
    """
    allocated_bytes: int | None
    """By this process; None if the message does not have it."""


class LayerUse(NamedTuple):
    """Memory of a stage's layers on its device."""

    used_bytes: int
    budget_bytes: int = 0
    """0 for no limit."""
    least_bytes: int = 0
    """Minimum budget with which the stage can run; 0 if unknown."""


def read_shortage(text: str) -> Shortage | None:
    """Read the message of a :class:`torch.OutOfMemoryError`; None if it has another form.

    The form is that of torch's c10/cuda/CUDACachingAllocator.cpp.
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
    """Bytes of a size with two decimals, moved by half of the last one: up (1), down (-1) or not
    (0).
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
    """One line: what was active, who holds the memory, and a budget that would have sufficed.

    Args:
        error: what torch raised when the task was tried a second time.
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
"""Parts of error messages that mean a shortage."""

_PROBE_BYTES = 1 << 30
"""More than the allocator can have cached when a stage begins."""


class _Seen:
    """State of this process's allocator."""

    refused = 0
    told = 0
    """Number of shortages that the allocator reported to the observer."""
    tells: bool | None = None
    """Whether it reports; None until this was tried."""
    provoked = 0
    """Number of shortages that were provoked by trying this."""


def refused_allocations() -> int:
    """How often torch's allocator had no memory so far, raised or not; 0 without CUDA."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    if _Seen.tells is None:
        _Seen.tells = _tells()
    return (_Seen.told if _Seen.tells else _counted()) - _Seen.provoked


def note() -> None:
    """Forget the shortages so far: a stage begins, or a shortage was raised and handled.

    An allocator that reported another number than it counts is not relied on any more.
    """
    _Seen.refused = refused_allocations()
    if _Seen.tells and _Seen.told != _counted():
        _Seen.tells = False
        _Seen.refused = refused_allocations()


def _counted() -> int:
    """torch's own count. It makes some 200 numbers, which takes as long as a few kernel
    launches.
    """
    return int(torch.cuda.memory_stats_as_nested_dict()["num_ooms"])


def _tells() -> bool:
    """Register an observer with the allocator, and provoke a shortage to see whether it is called.

    Not every allocator supports this, and the call is private; so any result other than one call
    disables it. The shortage is provoked by setting the memory fraction of this process to 0 for a
    moment: a request that is too large for any device would break expandable segments.
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
    """Raise every shortage of memory within the block, whatever torch does about it.

    Refused allocations are counted once, at the end. So an earlier shortage that nobody noted
    counts as one of the block, which is then computed again, with the same bits.

    Raises:
        torch.OutOfMemoryError: also if the work was done with an algorithm that needs less memory.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Nothing to do."""

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
    """Carries out what needs device memory, and once more after freeing memory if it was short.

    Args:
        free_memory: frees what can be freed.
    """

    def __init__(self, free_memory: Callable[[], None]) -> None:
        self._free_memory = free_memory
        self.retries = 0
        """Number of second tries."""

    def attempt(self, act: Callable[[], _Result]) -> _Result:
        """Call ``act``, which must change nothing when memory is short, at most twice."""
        try:
            return act()
        except torch.OutOfMemoryError:
            pass
        note()
        # Out here nothing holds the first try's tensors any more: its traceback did.
        self.retries += 1
        self._free_memory()
        return act()

    def wrapped(self, act: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """The same function with a second try at each call."""

        @wraps(act)
        def attempted(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            return self.attempt(partial(act, *args, **kwargs))

        return attempted

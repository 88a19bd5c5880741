"""Shortages of device memory that torch does not raise as such.

Where cuDNN cannot have its workspace, torch quietly takes another algorithm, and bits differ. A
library's handle for which there is no memory is a plain ``RuntimeError``. Both are made the error
that everything else knows.
"""

from __future__ import annotations

from contextlib import suppress

import torch

from naspipe.config.errors import reason

_NO_HANDLE = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "ALLOCATION_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED",
    "CUDA error: out of memory",
)
"""In messages of errors that mean a shortage."""

_PROBE_BYTES = 1 << 30
"""More than the allocator can have at hand where a stage begins."""


class _Seen:
    """What this process knows of its allocator."""

    refused = 0
    """What was noted."""
    told = 0
    """What the allocator told of."""
    tells: bool | None = None
    """Whether it tells; None until that was tried."""
    provoked = 0
    """What it refused when that was tried."""


def refused_allocations() -> int:
    """How often torch's allocator had no memory so far, raised or not; 0 without CUDA."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    if _Seen.tells is None:
        _Seen.tells = _tells()
    return (_Seen.told if _Seen.tells else _counted()) - _Seen.provoked


def note() -> None:
    """What was refused up to now is known: a stage begins, or a shortage was raised and seen to.

    An allocator that told of another number than it counts is not relied on any more.
    """
    _Seen.refused = refused_allocations()
    if _Seen.tells and _Seen.told != _counted():
        _Seen.tells = False
        _Seen.refused = refused_allocations()


def _counted() -> int:
    """As torch counts. To answer, it makes some 200 numbers: as long as a few kernels' launches."""
    return int(torch.cuda.memory_stats_as_nested_dict()["num_ooms"])


def _tells() -> bool:
    """Have the allocator tell of all that it refuses; whether it does, when made to refuse.

    Not every allocator can, and the call is private. So whatever comes out but one call is not
    relied on. It refuses as this process may have no memory for a moment: a request that is too
    large for any device is no way, as segments that grow do not stand it.
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
    """Have every shortage of memory within raised, whatever torch makes of it.

    What was refused is looked at once, at the end. So a shortage that came before and that nobody
    noted counts as one of what is inside. That is computed again, and has the same bits.

    Raises:
        torch.OutOfMemoryError: also where the work was done with an algorithm that needs less.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Nothing is asked."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """Find what was refused."""
        before, _Seen.refused = _Seen.refused, refused_allocations()
        if error is None and _Seen.refused != before:
            raise torch.OutOfMemoryError(
                "an operation had no memory for its workspace and took an algorithm that needs "
                "less, which may leave other bits"
            )
        if isinstance(error, RuntimeError) and _lacked_handle(error):
            raise torch.OutOfMemoryError(reason(error)) from error


def _lacked_handle(error: RuntimeError) -> bool:
    is_plain = not isinstance(error, torch.OutOfMemoryError)
    return is_plain and any(name in str(error) for name in _NO_HANDLE)

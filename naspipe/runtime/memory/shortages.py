"""Shortages of device memory that torch does not raise as such.

Where cuDNN cannot have its workspace, torch quietly takes another algorithm, and bits differ. A
library's handle for which there is no memory is a plain ``RuntimeError``. Both are made the error
that everything else knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from naspipe.core.errors import reason

_NO_HANDLE = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "ALLOCATION_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED",
    "CUDA error: out of memory",
)
"""In messages of errors that mean a shortage."""


def refused_allocations() -> int:
    """How often torch's allocator had no memory so far, raised or not; 0 without CUDA."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    stats = torch.cuda.memory_stats_as_nested_dict()
    return int(stats["num_ooms"])


@contextmanager
def raising_shortages() -> Iterator[None]:
    """Have every shortage of memory within raised, whatever torch makes of it.

    Raises:
        torch.OutOfMemoryError: also where the work was done with an algorithm that needs less.
    """
    before = refused_allocations()
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if any(name in str(error) for name in _NO_HANDLE):
            raise torch.OutOfMemoryError(reason(error)) from error
        raise
    if refused_allocations() != before:
        raise torch.OutOfMemoryError(
            "an operation had no memory for its workspace and took an algorithm that needs less, "
            "which may leave other bits"
        )

"""Shortages that torch does not raise as such are found all the same."""

from __future__ import annotations

import pytest
import torch

from naspipe.runtime.memory import shortages
from naspipe.runtime.memory.shortages import raising_shortages


@pytest.fixture
def refused(monkeypatch):
    """How often the allocator had no memory, as torch counts it on a GPU."""
    count = [0]
    monkeypatch.setattr(shortages, "refused_allocations", lambda: count[0])
    return count


def test_an_operation_that_went_on_with_less_memory_is_a_shortage(refused):
    refused[0] = 3
    with raising_shortages():
        pass
    with pytest.raises(torch.OutOfMemoryError, match="no memory for it"), raising_shortages():
        refused[0] += 1


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "CUDA error: out of memory",
    ],
)
def test_a_handle_that_could_not_be_made_is_a_shortage(refused, text):
    with pytest.raises(torch.OutOfMemoryError, match=text[:16]), raising_shortages():
        raise RuntimeError(text)


def test_other_errors_stay_as_they_are(refused):
    with pytest.raises(RuntimeError, match="shapes") as caught, raising_shortages():
        raise RuntimeError("shapes cannot be multiplied")
    assert not isinstance(caught.value, torch.OutOfMemoryError)

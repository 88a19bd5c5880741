"""Shortages that torch does not raise as such are found all the same."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from naspipe.runtime.memory import shortages
from naspipe.runtime.memory.memory_retry import MemoryRetry
from naspipe.runtime.memory.shortages import raising_shortages


@pytest.fixture
def refused(monkeypatch):
    """How often the allocator had no memory, as torch counts it on a GPU."""
    count = [0]
    monkeypatch.setattr(shortages, "refused_allocations", lambda: count[0])
    shortages.note()
    yield count
    monkeypatch.undo()
    shortages.note()


class Allocator:
    """In the stead of torch's, on a GPU: it counts what it refuses, and may tell of it."""

    def __init__(self, monkeypatch, tells):
        self.count, self.observer, self.asked, self.tells = 5, None, 0, tells
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", self.stats)
        monkeypatch.setattr(
            torch._C, "_cuda_attach_out_of_memory_observer", self.attach, raising=False
        )
        monkeypatch.setattr(torch, "empty", self.refuse)
        monkeypatch.setattr(shortages, "_Seen", type("Seen", (shortages._Seen,), {"tells": None}))

    def attach(self, observer):
        if self.tells == "raises":
            raise RuntimeError("cudaMallocAsync does not support this")
        self.observer = observer if self.tells == "calls" else None

    def refuse(self, *_, **__):
        self.count += 1
        if self.observer is not None:
            self.observer(0, 1, 2, 3)
        raise torch.OutOfMemoryError

    def stats(self):
        self.asked += 1
        return {"num_ooms": self.count}


@pytest.mark.parametrize("tells", ["calls", "never", "raises"])
def test_an_allocator_that_does_not_tell_is_asked(monkeypatch, tells):
    allocator = Allocator(monkeypatch, tells)
    shortages.note()
    began = allocator.asked
    with raising_shortages():
        pass
    raised = pytest.raises(torch.OutOfMemoryError, match="less, which may")
    with raised, raising_shortages(), suppress(torch.OutOfMemoryError):
        torch.empty(1)
    with raising_shortages():
        pass
    assert allocator.asked - began == (0 if tells == "calls" else 3)


def test_an_operation_that_went_on_with_less_memory_is_a_shortage(refused):
    refused[0] = 3
    shortages.note()
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


def test_one_that_came_before_counts_once(refused):
    refused[0] += 1
    with pytest.raises(torch.OutOfMemoryError), raising_shortages():
        pass
    with raising_shortages():
        pass


def test_one_that_was_seen_to_is_not_that_of_the_next_block(refused):
    def act():
        if not refused[0]:
            refused[0] += 1
            raise torch.OutOfMemoryError
        return "done"

    retry = MemoryRetry(lambda: None)
    assert retry.attempt(act) == "done"
    with raising_shortages():
        pass
    assert retry.retries == 1


def test_the_allocator_is_asked_once_for_a_block(refused, monkeypatch):
    asked = []
    monkeypatch.setattr(shortages, "refused_allocations", lambda: asked.append(1) or 0)
    with raising_shortages():
        pass
    assert len(asked) == 1

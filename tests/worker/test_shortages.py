"""Shortages that torch does not raise as such are found all the same."""

from __future__ import annotations

import pytest
import torch

from naspipe.machine import out_of_memory as shortages
from naspipe.machine.out_of_memory import MemoryRetry, raising_shortages


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

    def __init__(self, monkeypatch, how):
        self.count, self.observer, self.asked, self.how, self.share = 5, None, 0, how, 0.5
        cuda = {
            "is_initialized": lambda: True,
            "memory_stats_as_nested_dict": self.stats,
            "get_per_process_memory_fraction": lambda: self.share,
            "set_per_process_memory_fraction": self.set_share,
        }
        for name, function in cuda.items():
            monkeypatch.setattr(torch.cuda, name, function)
        if how == "no call":
            monkeypatch.delattr(torch._C, "_cuda_attach_out_of_memory_observer", raising=False)
        else:
            monkeypatch.setattr(
                torch._C, "_cuda_attach_out_of_memory_observer", self.attach, raising=False
            )
        monkeypatch.setattr(torch, "empty", self.empty)
        monkeypatch.setattr(shortages, "_Seen", type("Seen", (shortages._Seen,), {"tells": None}))

    def attach(self, observer):
        if self.how == "raises":
            raise RuntimeError("not supported")
        self.observer = observer if self.how != "never" else None

    def set_share(self, share):
        self.share = share

    def empty(self, size, *, dtype, device):
        if self.share == 0.0 and self.how != "at hand":
            self.refuse()
            raise torch.OutOfMemoryError

    def refuse(self):
        self.count += 1
        if self.observer is not None:
            self.observer(0, 1, 2, 3)

    def stats(self):
        self.asked += 1
        return {"num_ooms": self.count}


@pytest.mark.parametrize("how", ["tells", "raises", "never", "no call", "at hand"])
def test_an_allocator_that_does_not_tell_is_asked(monkeypatch, how):
    allocator = Allocator(monkeypatch, how)
    shortages.note()
    assert allocator.share == 0.5
    assert shortages.refused_allocations() == 5
    began = allocator.asked
    with raising_shortages():
        pass
    with pytest.raises(torch.OutOfMemoryError, match="less, which may"), raising_shortages():
        allocator.refuse()
    with raising_shortages():
        pass
    assert allocator.asked - began == (0 if how == "tells" else 3)


def test_an_allocator_that_told_of_less_than_it_counts_is_asked_from_then_on(monkeypatch):
    allocator = Allocator(monkeypatch, "tells")
    shortages.note()
    allocator.count += 1
    shortages.note()  # as behind one that was raised
    with raising_shortages():
        pass
    allocator.observer = None
    with pytest.raises(torch.OutOfMemoryError), raising_shortages():
        allocator.refuse()


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

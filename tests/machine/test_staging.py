"""Host memory for tensors on their way, where there is nothing to pin it for."""

from __future__ import annotations

import warnings

import pytest
import torch

from naspipe.machine.staging import HOST, MOST_RECYCLED, Recycled, Staging


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine can pin memory")
def test_memory_that_cannot_be_pinned_is_one_warning():
    staging = Staging(torch.device("cuda:0"))
    with pytest.warns(UserWarning, match="is not pinned: .*copies from and to the device"):
        assert staging.allocate(100).numel() == 100
    assert not staging.is_pinned
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not staging.allocate(100).is_pinned()


def test_bytes_that_are_in_host_memory_are_not_copied():
    raw = torch.arange(9, dtype=torch.uint8)
    assert HOST.to_host(raw) is raw
    HOST.wait()


def test_large_pieces_are_used_again_when_nothing_lies_in_them():
    recycled, size = Recycled(), 3 << 20
    first = recycled.allocate(size)
    address, part = first.data_ptr(), first[100:200].view(torch.float32)
    del first
    second = recycled.allocate(size)
    assert second.data_ptr() != address, "a tensor still lies in the first piece"
    del part
    assert recycled.allocate(size - 4096).data_ptr() == address
    assert recycled.allocate(size).data_ptr() == address, "it was free again at once"


def test_what_autograd_keeps_is_not_used_again():
    recycled = Recycled()
    values = recycled.allocate(4 << 20).view(torch.float32).fill_(2.0).requires_grad_()
    address, squares = values.data_ptr(), (values.detach().requires_grad_() ** 2).sum()
    del values
    assert recycled.allocate(4 << 20).fill_(255).data_ptr() != address
    squares.backward()


def test_only_some_pieces_are_kept():
    recycled = Recycled()
    pieces = [recycled.allocate((1 << 20) + number) for number in range(2 * MOST_RECYCLED)]
    addresses = {piece.data_ptr() for piece in pieces}
    del pieces
    again = [recycled.allocate(1 << 20) for _ in range(2 * MOST_RECYCLED)]
    assert sum(piece.data_ptr() in addresses for piece in again) >= MOST_RECYCLED
    assert recycled.allocate(64 << 20).numel() == 64 << 20, "none of them is large enough"

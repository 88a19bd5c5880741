"""Host memory for tensors on their way, where there is nothing to pin it for."""

from __future__ import annotations

import warnings

import pytest
import torch

from naspipe.runtime.devices.staging import HOST, Staging


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

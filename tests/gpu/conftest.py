"""Tests that need a GPU: skipped, with a reason, where there is none."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")

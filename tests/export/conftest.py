"""One thread, as in a stage."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def one_thread():
    """As in a stage."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

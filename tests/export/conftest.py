"""NNI's import warns of newer versions of torch and pandas: once, here, where that is no error."""

from __future__ import annotations

import importlib
import importlib.util
import warnings

import pytest

if importlib.util.find_spec("nni"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("nni.nas.hub.pytorch")


@pytest.fixture(autouse=True)
def one_thread():
    """As in a stage."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

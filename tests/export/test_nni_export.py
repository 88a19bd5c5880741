"""Subnets of NNI's spaces, written out so that neither naspipe nor NNI is needed."""

from __future__ import annotations

import importlib
import importlib.util
import warnings

import pytest
import torch
from torch import nn

import naspipe
from naspipe.export.assembly import assemble, find_choices
from tests.export.outside import outputs_outside
from tests.oracle import bits

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("nni"), reason="NNI is not installed: pip install 'naspipe[nni]'"
)


@pytest.fixture(autouse=True, scope="module")
def nni_is_there():
    """Its import warns of newer versions of torch and pandas: here, where that is no error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("nni.nas.hub.pytorch")


@pytest.mark.parametrize(
    "names",
    [
        ("nasbench201", "autoformer"),
        pytest.param(("shufflenet", "nds"), marks=pytest.mark.long),
    ],
)
def test_neither_naspipe_nor_nni_is_needed(tmp_path, names):
    from tests.nni.spaces import batches, make

    expected = {}
    for name in names:
        run = naspipe.train(
            naspipe.from_nni(make(name)), batches, nn.CrossEntropyLoss(), steps=1, lr=0.01,
            run_dir=tmp_path / name / "run",
        )  # fmt: skip
        choices, out = find_choices(run, "first"), tmp_path / name / "out"
        done = naspipe.export_subnet(run, choices, out, data=batches)
        assert done.needs == () and done.is_checked
        with torch.no_grad():
            outputs = assemble(run, choices)({"input": batches(0, 0)["input"]})
        expected[out] = [bits(t) for t in outputs]
    found = outputs_outside({out: {"input": batches(0, 0)["input"]} for out in expected})
    assert {out: [bits(t) for t in tensors] for out, tensors in found.items()} == expected

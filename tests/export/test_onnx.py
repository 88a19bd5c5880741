"""The ONNX form: the same outputs, or one line that says why there is none."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
import torch
from torch import nn

import naspipe
import search_spaces
from naspipe.export.pytorch_form import load_pytorch
from tests.export import own_layers
from tests.export.test_export import image_batches

EXTRA = ("onnx", "onnxruntime", "onnxscript")

needs_onnx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, EXTRA)),
    reason="ONNX is not installed: pip install 'naspipe[onnx]'",
)


def trained(space, data, directory):
    return naspipe.train(space, data, nn.CrossEntropyLoss(), steps=1, lr=0.01, run_dir=directory)


@needs_onnx
def test_onnx_runtime_gives_torchs_outputs(tmp_path):
    """A few of the image space's layers, max pool's own autograd function among them."""
    import onnxruntime

    info = {"channels": 1, "height": 8, "width": 8, "classes": 10}
    blocks = search_spaces.build("cv.c1", "tiny", info).blocks
    run = trained(
        naspipe.Space("few", [blocks[0], blocks[1], blocks[2], blocks[-1]]), image_batches,
        tmp_path / "run",
    )  # fmt: skip
    out = tmp_path / "out"
    done = naspipe.export_subnet(run, (10, 16), out, data=image_batches, onnx=True)
    assert done.onnx_difference is not None and 0 < done.onnx_difference < 1e-5
    image = image_batches(1, 5)["input"]
    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"input": image.numpy()})
    with torch.no_grad():
        expected = load_pytorch(out)(image)
    assert np.abs(found - expected.numpy()).max() < 1e-5


class Strange(nn.Module):
    """Has an operator that ONNX does not."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x):
        return self.linear(x) + torch.linalg.eigvalsh(x.T @ x).sum().detach()


@needs_onnx
def test_an_operator_that_onnx_lacks_is_one_line(tmp_path):
    space = naspipe.Space("strange", [naspipe.Shared("all", Strange)])
    run = trained(space, own_layers.batches, tmp_path / "run")
    with pytest.raises(naspipe.ConfigError, match=r"ONNX: .*eigvalsh|ONNX: .*eigh") as caught:
        naspipe.export_subnet(
            run, (), tmp_path / "out", data=own_layers.batches, onnx=True
        )  # fmt: skip
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out/model.onnx").exists() and (tmp_path / "out/model.py").exists()


def test_without_the_packages_the_extra_is_named(tmp_path, monkeypatch):
    run = trained(own_layers.space, own_layers.batches, tmp_path / "run")
    for name in EXTRA:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(naspipe.ConfigError, match=r"onnx and onnxscript.*'naspipe\[onnx\]'"):
        naspipe.export_subnet(
            run, (0, 0), tmp_path / "out", data=own_layers.batches, onnx=True
        )  # fmt: skip
    assert not (tmp_path / "out").exists()

"""Kernels round by how a tensor lies in memory: an export keeps that. A wrong one is not left."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe
from naspipe.export import exporter
from naspipe.export.pytorch_form import load_pytorch
from tests.export.outside import outputs_outside
from tests.oracle import bits


def images(seed, number):
    draw = torch.Generator().manual_seed(number)
    target = torch.randint(0, 3, (16,), generator=draw)
    return {"input": torch.randn(16, 6, 12, 12, generator=draw), "target": target}


def channels_last():
    return nn.Conv2d(6, 6, 3, padding=1).to(memory_format=torch.channels_last)


def thin():
    """Its weight is row-major by torch's word, too; its strides are those of channels_last."""
    return nn.Conv2d(6, 6, 1).to(memory_format=torch.channels_last)


def transposed():
    made = nn.Linear(6, 3)
    made.weight = nn.Parameter(made.weight.detach().t().contiguous().t())
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), made)


def trained(tmp_path):
    blocks = [naspipe.Block([make, nn.Identity]) for make in (channels_last, thin)]
    space = naspipe.Space("laid", [*blocks, naspipe.Shared("head", transposed)])
    return naspipe.train(
        space, images, nn.CrossEntropyLoss(), steps=4, run_dir=tmp_path / "run", sampler="fair"
    )  # fmt: skip


def test_an_export_has_the_strides_and_the_bits_of_the_run(tmp_path):
    run, out = trained(tmp_path), tmp_path / "out"
    assert naspipe.export_subnet(run, (0, 0), out, data=images).is_checked
    layers = [run.layer(0, 0), run.layer(1, 0), run.shared("head")]
    loaded = [*load_pytorch(out).children()]
    for layer, found in zip(layers, loaded, strict=True):
        own = {name: each.stride() for name, each in layer.named_parameters()}
        assert own == {name: each.stride() for name, each in found.named_parameters()}
    torch.set_num_threads(1)
    with torch.no_grad():
        expected = nn.Sequential(*layers).eval()(images(0, 0)["input"])
    (outside,) = outputs_outside({out: {"input": images(0, 0)["input"]}})[out]
    assert bits(outside) == bits(expected)


@pytest.mark.parametrize("is_there", [False, True])
def test_an_export_that_fails_its_check_leaves_no_files(tmp_path, monkeypatch, is_there):
    run, out = trained(tmp_path), tmp_path / "out"
    if is_there:
        out.mkdir()
    monkeypatch.setattr(exporter, "same_outputs", lambda *_: False)
    with pytest.raises(naspipe.NaspipeError, match="outputs differ from the run's"):
        naspipe.export_subnet(run, (0, 0), out, data=images)
    assert out.exists() == is_there and not list(tmp_path.glob("out/*"))

"""A user's own classes go into the file: neither naspipe nor their package is needed to load."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
import torch
from torch import nn

import naspipe
from tests.export.outside import outputs_outside
from tests.oracle import bits

OPS = """
import math
import torch
from torch.nn.functional import relu

SLOPES = {"soft": 0.5}
SLOPES["hard"] = 0.125
LOW, HIGH = -math.inf, 4.0
try:
    import absent_library
except ImportError:
    absent_library = None


def bounded(x):
    return x.clamp(LOW, HIGH)


def leaky(x, slope):
    return relu(x) - SLOPES[slope] * relu(-x)
"""

LAYERS = """
import torch
from torch import nn
import naspipe as npp
from .ops import bounded, leaky

FACTORS = []
FACTORS.append(0.75)


class Config:
    def __init__(self, width):
        self.width = width


class Base(nn.Module):
    scale = FACTORS[0]

    @property
    def doubled(self):
        return 2 * self.scale


class LayerNorm(Base):
    # Named like one of torch's, and not that one.
    def __init__(self, config, slope="soft"):
        super().__init__()
        self.config = config
        self.slope, self.bound = slope, bounded
        self.weight = nn.Parameter(torch.ones(config.width))
        self.op0, self.shift1 = nn.LayerNorm(config.width), 0.25

    def forward(self, x):
        shift = sum(getattr(self, f"{name}1") for name in ("shift",))
        return self.bound(leaky(self.op0(x), self.slope) * self.weight * self.doubled + shift)


class Linear(nn.Linear):
    def forward(self, x):
        return super().forward(x) + self.in_features


def make(slope):
    return lambda: LayerNorm(Config(6), slope)


space = npp.Space("own", [
    npp.Shared("stem", lambda: nn.Linear(6, 6)),
    npp.Block([make("soft"), make("hard"), lambda: Linear(6, 6)]),
    npp.Block([make("soft"), nn.Identity]),
    npp.Shared("head", lambda: nn.Linear(6, 4)),
])
"""
OPEN = LAYERS.replace("        self.config = config\n", "")
"""What may read any attribute keeps all of them, and a Config has no form."""

PLAIN = LAYERS.replace('sum(getattr(self, f"{name}1") for name in ("shift",))', "self.shift1")
STAR = PLAIN.replace("from .ops import bounded, leaky", "from .ops import *")


def batches(seed, number):
    draw = torch.Generator().manual_seed(seed * 1_000_003 + number)
    target = torch.randint(0, 4, (5,), generator=draw)
    return {"input": torch.randn(5, 6, generator=draw), "target": target}


def package(tmp_path, monkeypatch, **files):
    """A user's package; it is out of reach where an export of it is loaded."""
    folder = tmp_path / "code" / "ownpackage"
    folder.mkdir(parents=True)
    for name, text in {"__init__": "", "ops": OPS, **files}.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder.parent)
    for name in [name for name in sys.modules if name.split(".")[0] == "ownpackage"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    return importlib.import_module("ownpackage.layers")


def exported(tmp_path, space, choices):
    run = naspipe.train(
        space,
        batches,
        nn.CrossEntropyLoss(),
        steps=6,
        lr=0.01,
        run_dir=tmp_path / "run",
        sampler="fair",
    )
    return run, naspipe.export_subnet(run, choices, tmp_path / "out", data=batches)


def expected(run, choices):
    found = [run.shared("stem"), *(run.layer(*each) for each in enumerate(choices))]
    out = batches(0, 0)["input"]
    torch.set_num_threads(1)
    with torch.no_grad():
        for layer in [*found, run.shared("head")]:
            out = layer.eval()(out)
    return out


@pytest.mark.parametrize("text", [OPEN, PLAIN, STAR], ids=["open", "plain", "star"])
@pytest.mark.parametrize("choices", [(1, 0), (2, 0)])
def test_it_loads_without_naspipe_and_without_the_package(tmp_path, monkeypatch, text, choices):
    mine = package(tmp_path, monkeypatch, layers=text)
    run, done = exported(tmp_path, mine.space, choices)
    assert done.is_checked and done.needs == ()
    out = tmp_path / "out"
    assert "ownpackage" not in (out / "model.py").read_text()
    (found,) = outputs_outside({out: {"input": batches(0, 0)["input"]}})[out]
    assert bits(found) == bits(expected(run, choices))


CASES = {
    "two of one name": (
        "from torch.nn import LayerNorm\n"
        "def other(x):\n    return LayerNorm(6, elementwise_affine=False)(x)\n",
        "from .other import other\n", "other(x)",
    ),
    "a module whole": ("def same(x):\n    return x\n", "from . import other\n", "other.same(x)"),
    "renamed": ("def same(x):\n    return x\n", "from .other import same as alike\n", "alike(x)"),
    "the file's own": ("def load(x):\n    return x\n", "from .other import load\n", "load(x)"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_copied_is_imported_and_said(tmp_path, monkeypatch, name):
    other, line, call = CASES[name]
    text = line + PLAIN.replace("self.op0(x)", f"self.op0({call})")
    mine = package(tmp_path, monkeypatch, other=other, layers=text.replace(
        "        self.config = config\n", ""
    ))  # fmt: skip
    _, done = exported(tmp_path, mine.space, (0, 1))
    assert done.is_checked and done.needs == ("ownpackage.layers",)
    assert json.loads((tmp_path / "out/model.json").read_text())["needs"] == list(done.needs)
    assert done.whys[0].startswith("LayerNorm cannot be written out: ") and len(done.whys) == 1
    if name == "the file's own":
        assert "ownpackage.layers.load is called as the loader's own load" in done.whys[0]


USUAL = """
import json as CLASSES

Path, Any, importlib, annotations = 1, 2, 3, 4

def load_file(x):
    return x

def _module(x):
    return load_file(x) + Path - Any + importlib - annotations

def _value(x):
    return _module(x) + len(CLASSES.dumps([]))
"""
"""Names that a loader would use, too."""


def test_usual_names_do_not_clash_with_the_loader_s(tmp_path, monkeypatch):
    text = "from .other import _value\n" + PLAIN.replace("self.op0(x)", "self.op0(_value(x))")
    mine = package(tmp_path, monkeypatch, other=USUAL, layers=text)
    run, done = exported(tmp_path, mine.space, (0, 1))
    assert done.is_checked and done.needs == () and done.whys == ()
    out = tmp_path / "out"
    (found,) = outputs_outside({out: {"input": batches(0, 0)["input"]}})[out]
    assert bits(found) == bits(expected(run, (0, 1)))


def test_a_torch_class_beside_one_of_its_name_keeps_what_it_reads(tmp_path, monkeypatch):
    """The user's LayerNorm holds torch's, whose forward reads what no code of the user names."""
    mine = package(tmp_path, monkeypatch, layers=PLAIN)
    exported(tmp_path, mine.space, (0, 0))
    sys.modules.pop("model", None)
    monkeypatch.syspath_prepend(tmp_path / "out")
    layer = importlib.import_module("model").load().block0
    sys.modules.pop("model")
    assert type(layer) is not nn.LayerNorm and type(layer.op0) is nn.LayerNorm
    assert layer.op0.eps == 1e-5 and not hasattr(layer, "config")

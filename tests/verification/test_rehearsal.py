"""A plain loop whose bits change when user code remembers more than a run keeps."""

from __future__ import annotations

import itertools
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.checks import tried_layers
from naspipe.config.errors import ConfigError, VerificationError
from naspipe.config.execution import VerifySettings
from naspipe.jobs.losses import has_users_code
from naspipe.streams.samplers import draw_subnets
from naspipe.verification import verifier
from tests.inputs.convolutions import STEM, head

STEPS = VerifySettings.steps
ALL = {"calls": 0}
DRAW = torch.Generator().manual_seed(0)


class Layer(nn.Module):
    """Whose forward is ``compute``, with much in which that can keep something."""

    calls = 0

    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.scale = nn.Parameter(torch.ones(()))
        self.kept, self.mean, self.past, self.own_calls = None, torch.zeros(()), [], 0
        self.cycle = itertools.cycle([1.0, 1.0, 1.0, 2.0])
        self.torch = torch.Generator().manual_seed(0)
        self.numpy, self.python = np.random.default_rng(0), random.Random(0)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        return self.compute(self, x) * self.scale


def counts(self, x):
    self.own_calls += 1
    return x * self.own_calls


def counts_in_its_class(self, x):
    Layer.calls += 1
    return x * Layer.calls


def counts_in_a_global(self, x):
    ALL["calls"] += 1
    return x * ALL["calls"]


def averages(self, x):
    self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
    return x - self.mean


def remembers(self, x):
    self.past.append(x.detach())
    return x + sum(self.past)


def goes_round(self, x):
    return x * next(self.cycle)


def draws(name):
    def compute(self, x):
        if name == "torch":
            return x + torch.rand(x.shape, generator=self.torch)
        return x * getattr(self, name).random()

    compute.__name__ = f"draws from its own {name}"
    return compute


def draws_from_the_modules(self, x):
    return x * torch.rand((), generator=DRAW)


def draws_once(self, x):
    if self.kept is None:
        self.kept = torch.rand(x.shape[1:])
    return x * self.kept


def centres_as_the_first(self, x):
    if self.kept is None:
        self.kept = x.detach().mean()
    return x - self.kept


def changes_gradients(self, x):
    y = x * 1
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * next(self.cycle))
    return y


def keeps_in_a_buffer(self, x):
    self.count += 1
    return x * self.count


def makes_a_buffer(self, x):
    if "places" not in self._buffers:
        self.register_buffer("places", torch.rand(x.shape[1:]))
    return x + self.places


def keeps_what_shapes_say(self, x):
    if self.kept is None:
        self.kept = torch.arange(float(x.shape[-1]))
    return x + self.kept


def draws_from_the_global_ones(self, x):
    return functional.dropout(x) * torch.rand(()) * float(np.random.rand()) * random.random()


SILENT = [
    counts, counts_in_its_class, counts_in_a_global, averages, remembers, goes_round,
    draws("torch"), draws("numpy"), draws("python"), draws_from_the_modules, draws_once,
    centres_as_the_first, changes_gradients,
]  # fmt: skip
KEPT = [keeps_in_a_buffer, makes_a_buffer, keeps_what_shapes_say, draws_from_the_global_ones]


def images(seed, number):
    draw = torch.Generator().manual_seed(number)
    return {"input": torch.rand(4, 3, 8, 8, generator=draw), "target": torch.arange(4)}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Other tests may take the machine meanwhile, and the plain loop has a low priority."""
    monkeypatch.setattr(verifier, "LEAST_SECONDS", 60.0)
    monkeypatch.setattr(VerifySettings, "steps", STEPS)
    # The check before the run finds some of these, too.
    monkeypatch.setattr(tried_layers, "MOST_SECONDS", -1.0)


def train(path, *blocks, loss=None, data=images, **more):
    more = {"steps": 6, "lr": 0.05, "progress": False, **more}
    space = npp.Space("s", [STEM, *blocks, head()])
    return npp.train(
        space, data, loss or nn.CrossEntropyLoss(), run_dir=path, verify="auto", **more
    )


@pytest.mark.parametrize("compute", SILENT, ids=lambda compute: compute.__name__)
def test_a_layer_that_remembers_stops_its_run(tmp_path, compute):
    """On one stage, where a run that is never resumed has the bits of a plain loop."""
    with pytest.raises(VerificationError, match="differs from the plain loop") as caught:
        train(tmp_path / "run", npp.Shared("own", partial(Layer, compute)))
    assert "remembers something outside of parameters, buffers and optimizer" in str(caught.value)


class Counts:
    """A hook that scales by how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, gradient):
        self.calls += 1
        return gradient * self.calls


def test_a_hook_of_a_parameter_that_remembers(tmp_path):
    """Of a layer of torch's: the hook is the user's code."""

    def hooked():
        layer = nn.Sequential(nn.Flatten(), nn.Linear(512, 8))
        layer[1].weight.register_hook(Counts())
        return layer

    blocks = [npp.Shared("own", hooked), npp.Shared("last", lambda: nn.Linear(8, 4))]
    space = npp.Space("s", [STEM, *blocks])
    with pytest.raises(VerificationError, match=r"param/1\.weight of layer own after"):
        npp.train(
            space, images, nn.CrossEntropyLoss(), steps=6, lr=0.05, progress=False, verify="auto",
            run_dir=tmp_path / "run",
        )  # fmt: skip


class Awkward(nn.Module):
    """Keeps things that cannot be compared or copied simply, and none that matters."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.view, self.functions = self.scale.detach(), {lambda x: x, self.forward}
        self.graph = torch.eye(3).to_sparse()
        self.register_buffer("mask", torch.ones(1).expand(8))
        self.register_buffer("last", None)

    def train(self, mode=True):
        self.mode = mode
        return super().train(mode)

    def forward(self, x):
        out = x * (self.scale * self.mask).view(-1, 1, 1)
        self.last = out.mean()
        return out


def test_awkward_attributes_and_buffers(tmp_path, capfd):
    run = train(tmp_path / "run", npp.Shared("own", Awkward))
    assert run.manifest["verified"] == {"steps": 4}
    assert "changes its attribute" not in capfd.readouterr().err


def test_the_attribute_is_named(tmp_path):
    with pytest.raises(VerificationError, match="its forward changes its attribute own_calls"):
        train(tmp_path / "run", npp.Shared("own", partial(Layer, counts)))


@pytest.mark.parametrize("compute", KEPT)
@pytest.mark.parametrize("rule", ["exact", "lag"])
def test_a_layer_that_keeps_what_a_run_keeps(tmp_path, capfd, compute, rule):
    if rule == "lag" and compute in KEPT[:2]:
        pytest.skip("a lagging layer may not write buffers")
    how = {"rule": npp.Lag(1, predicts=True)} if rule == "lag" else {}
    run = train(
        tmp_path / "run", npp.Shared("own", partial(Layer, compute), **how),
        recipe={"ema": 0.9, "optimizer": "AdamW"},
    )  # fmt: skip
    assert run.manifest["verified"]["steps"] >= 4
    said = capfd.readouterr().err
    assert ("its attribute kept" in said) == (compute is keeps_what_shapes_say)


def test_a_counter_that_nothing_depends_on_is_noted(tmp_path, capfd):
    def logs(self, x):
        self.own_calls += 1
        return x

    train(tmp_path / "run", npp.Shared("own", partial(Layer, logs)))
    said = capfd.readouterr().err
    assert "layer own: its forward changes its attribute own_calls, which no checkpoint" in said


class Listed(nn.Module):
    """Reads its parameters in a list, and makes a buffer of another size in its first forward."""

    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList([torch.ones(()), torch.ones(())])
        self.kept = list(self.scales)
        self.register_buffer("largest", torch.tensor([]))

    def forward(self, x):
        if not self.largest.numel():
            self.largest = x.detach().amax(0)
        self.largest.copy_(torch.maximum(self.largest, x.detach().amax(0)))
        return x * self.kept[0] + self.kept[1] * self.largest


def test_buffers_of_another_size_and_parameters_in_a_list(tmp_path, capfd):
    """What a layer is made of again is memory of its own: the earlier layer is called, too."""
    run = train(tmp_path / "run", npp.Shared("own", Listed))
    assert run.manifest["verified"]["steps"] >= 4
    assert "changes its attribute" not in capfd.readouterr().err


def test_a_module_that_the_user_has_made(tmp_path):
    """The run trains copies of it, and the plain loop the module itself."""
    for compute in (counts, keeps_in_a_buffer):
        module = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), Layer(compute))
        how = {"steps": 5, "lr": 0.1, "verify": "auto", "progress": False}
        ways = {"run_dir": tmp_path / compute.__name__, **how}
        space = npp.chain([*module])
        if compute is counts:
            with pytest.raises(VerificationError, match="own_calls"):
                npp.train(space, images, nn.CrossEntropyLoss(), **ways)
        else:
            npp.train(space, images, nn.CrossEntropyLoss(), **ways)


def test_a_candidate_that_no_verified_step_uses(tmp_path, monkeypatch):
    """Only the check before the run sees it, which is therefore not left to verification."""
    made = npp.Block([*[nn.Identity] * 7, partial(Layer, counts)], alike=True)
    space = npp.Space("s", [STEM, made, head()])
    drawn = [choices[0] for choices in draw_subnets("fair", space, 0, 8)]
    assert 7 in drawn[4:]
    run = train(tmp_path / "unseen", made, steps=8, sampler="fair")
    assert run.manifest["verified"] == {"steps": 4}
    monkeypatch.setattr(tried_layers, "MOST_SECONDS", 60.0)
    with pytest.raises(ConfigError, match=r"^layer 0\.7 \(Layer\): expected the same output"):
        train(tmp_path / "seen", made, steps=8, sampler="fair")


def test_a_value_that_one_layer_leaves_for_another(tmp_path):
    left = {}

    def leaves(self, x):
        left["mean"] = x.detach().mean()
        return x

    def takes(self, x):
        return x - left["mean"]

    blocks = [npp.Shared(each.__name__, partial(Layer, each)) for each in (leaves, takes)]
    with pytest.raises(VerificationError, match="differs from the plain loop"):
        train(tmp_path / "run", *blocks)


class Remembers:
    """A loss that keeps a mean, a list, a generator, an iterator or its first batch."""

    def __init__(self, how):
        self.how, self.mean, self.past, self.first = how, 0.0, [], None
        self.draw, self.numpy = torch.Generator().manual_seed(0), np.random.default_rng(0)
        self.cycle = itertools.cycle([1.0, 1.0, 1.0, 2.0])

    def __call__(self, output, target):
        found = functional.cross_entropy(output, target)
        if self.how == "mean":
            self.mean = 0.9 * self.mean + 0.1 * found.detach()
            return found - self.mean
        if self.how == "list":
            self.past.append(float(found.detach()))
            return found * len(self.past)
        if self.how == "torch":
            return found * torch.rand((), generator=self.draw)
        if self.how == "numpy":
            return found * self.numpy.random()
        return found * next(self.cycle)


@pytest.mark.parametrize("how", ["mean", "list", "torch", "numpy", "iterator"])
def test_a_loss_that_remembers_stops_its_run(tmp_path, how):
    with pytest.raises(VerificationError, match=r"the loss of step [2-5] differs"):
        train(tmp_path / "run", loss=Remembers(how))


def test_a_loss_that_draws_by_the_key_and_logs(tmp_path):
    seen = []

    def noisy(output, target):
        seen.append(len(output))
        output = functional.dropout(output) * float(np.random.rand()) * random.random()
        return functional.cross_entropy(output, target)

    assert train(tmp_path / "run", loss=noisy).manifest["verified"]["steps"] >= 4


READ = {"now": 1.0}


def scaled(output, target):
    return functional.cross_entropy(output, target) * READ["now"]


def test_a_metric_that_changes_what_the_loss_reads(tmp_path, monkeypatch):
    monkeypatch.setitem(READ, "now", 1.0)

    def cools(output, target):
        READ["now"] *= 0.9
        return output.mean()

    with pytest.raises(VerificationError, match="the loss of step 1 differs"):
        train(tmp_path / "run", loss=scaled, metrics={"mine": cools})


def test_a_value_that_the_data_leaves_for_the_loss(tmp_path, monkeypatch):
    """It depends on how many batches are made ahead."""
    monkeypatch.setitem(READ, "now", 1.0)

    def cooling(seed, number):
        READ["now"] = 0.9**number
        return images(seed, number)

    with pytest.raises(VerificationError, match=r"the loss of step [0-2] differs"):
        train(tmp_path / "run", loss=scaled, data=cooling)


def test_where_code_of_the_users_runs():
    block, hooked = npp.Block([nn.Identity]), nn.Sequential(nn.Linear(2, 2))
    assert not has_users_code(block, hooked)
    assert has_users_code(block, nn.Sequential(Layer(counts)))
    hooked[0].register_forward_hook(lambda *_: None)
    assert has_users_code(block, hooked)
    elastic = npp.Elastic("e", nn.Linear, {"k": [1, 2]}, apply=lambda module, x, k: x)
    assert has_users_code(elastic, nn.Linear(2, 2))

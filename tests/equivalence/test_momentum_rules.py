"""What a momentum teacher must be: pairs, rates, norms and bad input."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.rules import MomentumUpdate
from naspipe.worker.blocks import updates
from naspipe.worker.layers.stored_layer import StoredLayer
from tests.equivalence import spaces
from tests.equivalence.momentum_runs import differences, plain, train


class Turned(nn.Module):
    """Parameters of one shape under two names, made in either order."""

    def __init__(self, names):
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.full((16,), float(names.index(name)))))

    def forward(self, x):
        return x * self.one + self.other


def test_layers_pair_by_name(tmp_path):
    space = npp.Space("turned", [npp.Shared("a", lambda: Turned(["one", "other"]))])
    teacher = npp.Momentum(0.0, lag=0, network=[Turned(["other", "one"])])
    run = npp.train(
        space, spaces.vectors, npp.losses.BYOL(), steps=2, lr=0.1, teacher=teacher,
        run_dir=tmp_path / "run",
    )  # fmt: skip
    taught = npp.Run(run.space, tmp_path / "run/teacher").shared("a")
    for name, value in run.shared("a").named_parameters():
        assert torch.equal(value, taught.get_parameter(name))


def swapped(layer, source, update, tau):
    pairs = zip(layer.parameters.values(), reversed(source.parameters.values()), strict=True)
    for mine, its in pairs:
        mine.data.lerp_(its.data.reshape(mine.shape) if mine.shape == its.shape else mine, 1 - tau)


@pytest.mark.parametrize("broken", ["pairs", "rate", "buffers", "versions"])
def test_a_broken_rule_is_seen(tmp_path, monkeypatch, broken):
    if broken == "pairs":
        monkeypatch.setattr(updates, "follow", swapped)
    elif broken == "rate":
        counted = iter(range(1000))
        rate = MomentumUpdate.rate
        monkeypatch.setattr(MomentumUpdate, "rate", lambda self, _, n: rate(self, next(counted), n))
    elif broken == "versions":  # the newest that there is
        bind = StoredLayer.bind
        monkeypatch.setattr(StoredLayer, "bind", lambda self, _: bind(self, self.version))
    else:
        monkeypatch.setattr(updates, "fold", lambda module, statistics: None)
    assert differences(train(tmp_path / "run"), plain())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: npp.Momentum(1.5), "expected tau from 0 to 1, found 1.5"),
        (lambda: npp.Momentum(0.9, -0.1), "expected end from 0 to 1, found -0.1"),
        (lambda: npp.Momentum(0.9, lag=-1), "lag of 0 steps or more, found -1"),
        (lambda: npp.Momentum(0.9, mode="half"), "mode to be train or eval, found 'half'"),
        (lambda: npp.Momentum(0.9, buffers="none"), "buffers to be own or copied or averaged"),
    ],
)
def test_no_momentum(make, text):
    with pytest.raises(npp.ConfigError, match=text):
        make()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"recipe": {"norms": "ordered"}}, "expected norms=deferred"),
        ({"recipe": {"passes": "accumulate:3"}}, "expected passes=accumulate:4, for 2 views"),
        ({"teacher": {"without": ["block0"]}}, "expected the last blocks"),
        ({"teacher": {"network": [nn.Linear(16, 3)]}}, "a network of 4 modules"),
        ({"policy": "bsp"}, "expected the policy csp"),
        ({"teacher": {"without": ["block3", "block4"]}}, "outputs as the student has them, of"),
        ({"teacher": {"network": [nn.Linear(16, 3), *[nn.ReLU()] * 3]}}, "expected 0.bias as the"),
        ({"data": lambda seed, n: {"input": torch.ones(1, 16)}}, "of two samples or more"),
        ({"loss": npp.losses.Contrastive(), "recipe": {"passes": "subnets:4"}}, "a joined loss"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, more, text):
    with pytest.raises(npp.ConfigError, match=text) as caught:
        train(tmp_path / "run", **more)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


class Held:
    """Batches with labels, to learn from and to be judged by."""

    batches_per_epoch = 6

    def __call__(self, seed, number):
        return spaces.vectors(seed, number + 1000)


def test_features_are_judged_on_the_way(tmp_path):
    """The same figures on any stages; the block before the projector is the default."""
    found = []
    for stages, kind in ((1, "ridge"), (2, "ridge"), (2, "knn")):
        execution = {
            "validate_every": 4, "validate_probe": kind, "validate_features": "block2",
            "validate_probe_batches": 4, "validate_batches": 2, "validate_subnets": "1",
        }  # fmt: skip
        path = tmp_path / f"{stages}-{kind}"
        run = train(path, stages, execution=execution, held_out=Held())
        found.append([dict(each.scores) for each in run.validations])
    assert len(found[0]) == 2 and found[0] == found[1] != found[2]
    with pytest.raises(npp.ConfigError, match="expected validate_probe='knn' or ridge"):
        train(tmp_path / "no", execution={"validate_every": 4}, held_out=Held())
    execution = {"validate_every": 4, "validate_probe": "knn", "validate_features": "nowhere"}
    with pytest.raises(npp.ConfigError, match="expected a block of views"):
        train(tmp_path / "no", execution=execution, held_out=Held())

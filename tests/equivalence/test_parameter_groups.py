"""Parameter groups: the bits of a plain loop with the same torch groups, wherever layers go."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.recipe import Recipe
from naspipe.worker.layers import optimizers, own_steps, stored_layer
from naspipe.worker.layers import optimizers as parameter_names
from naspipe.worker.layers import own_steps as around_step
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, check, plain_loop, restless
from tests.faults.helpers import Calm, Ends, fail
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()
RECIPE = {
    "parameter_groups": [
        {"match": ["bias", "norm"], "weight_decay": 0.0, "momentum": 0.0},
        {"match": "head.*", "lr_factor": 0.3},
    ],
}
OPTIONS = {"momentum": 0.9, "weight_decay": 0.1}


def split(block, module):
    """The same groups, as one writes them in a plain loop."""
    free, slow, rest = [], [], []
    for part in module.modules():
        is_norm = isinstance(part, nn.LayerNorm | nn.BatchNorm1d)
        for key, p in part.named_parameters(recurse=False):
            (free if is_norm or key == "bias" else slow if block == 7 else rest).append(p)
    return [
        {"params": rest},
        {"params": free, "weight_decay": 0.0, "momentum": 0.0},
        {"params": slow, "lr_factor": 0.3},
    ]


@pytest.mark.parametrize("more", [long({}), {"clip_layer_norm": 0.1, "ema": 0.9}])
def test_bits_of_groups(tmp_path, monkeypatch, more):
    restless(monkeypatch)
    check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(1, 2), steps=12, lr=0.05,
        options=OPTIONS, recipe={**RECIPE, **more}, split=split,
        execution={"memory_budget": "1.5x"} if more else {},
    )  # fmt: skip


@pytest.mark.parametrize("rule", [npp.Lag(2, predicts=True), npp.Every(2, momentum=0.5)])
def test_layers_with_steps_of_their_own_have_groups(tmp_path, rule):
    check(
        tmp_path, spaces.mixed(front=rule), spaces.vectors, LOSS, stages=(2,), steps=10,
        options=OPTIONS, split=without_decay,
        recipe={"parameter_groups": [{"match": ["bias", "norm"], "weight_decay": 0.0}]},
    )  # fmt: skip


def test_what_is_read_ahead_goes_by_the_momentum_of_its_group():
    module, own = nn.Linear(2, 2), npp.Lag(1, predicts=True).own_step
    recipe = Recipe(**RECIPE, optimizer_options=OPTIONS)
    grouping = parameter_names.grouping("stem", module, recipe.groups)
    optimizer = optimizers.make_optimizer(recipe, module.parameters(), own, grouping)
    for p in module.parameters():
        optimizer.state[p][own_steps.UPDATE] = torch.ones_like(p)
    seen = {name: own_steps.ahead(p, optimizer, own) for name, p in module.named_parameters()}
    assert torch.equal(seen["weight"], module.weight + 0.9)
    assert torch.equal(seen["bias"], module.bias)


def without_decay(block, module):
    return [
        {key: value for key, value in group.items() if key not in ("momentum", "lr_factor")}
        for group in split(-1, module)[:2]
    ]


def train(path, data, stages, **kw):
    return npp.train(
        spaces.mixed(), data, LOSS, steps=12, seed=1, lr=0.05, stages=stages, run_dir=path,
        optimizer_options=OPTIONS, recipe={**RECIPE, **kw.pop("more", {})},
        execution={"checkpoint_every": 3, "window": 3}, **kw,
    )  # fmt: skip


def test_groups_go_on_behind_a_checkpoint_and_are_compared(tmp_path):
    with pytest.raises(npp.NaspipeError, match="injected"):
        train(tmp_path / "run", Ends(spaces.vectors, 9, fail, tmp_path / "marker"), 2)
    others = {"parameter_groups": [{"match": "bias", "weight_decay": 0.0}]}
    with pytest.raises(npp.ConfigError, match="is another run: its recipe"):
        train(tmp_path / "run", Calm(spaces.vectors), 1, resume=True, more=others)
    run = train(tmp_path / "run", Calm(spaces.vectors), 1, resume=True)
    assert run.manifest["life"]["first"][0] > 0
    assert run.manifest["definition"]["recipe"]["parameter_groups"] == RECIPE["parameter_groups"]
    oracle = plain_loop(
        run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=0.05, options=OPTIONS,
        split=split,
    )  # fmt: skip
    assert_same_bits(run, oracle)


@pytest.mark.parametrize("broken", ["factor", "group", "order"])
def test_a_broken_rule_is_seen(tmp_path, monkeypatch, broken):
    """Rates without the factor; everything in the rest; norms added up in the groups' order."""
    more = {"clip_layer_norm": 0.1} if broken == "order" else {}
    with monkeypatch.context() as patch, pytest.raises(AssertionError):
        if broken == "factor":
            patch.setattr(optimizers, "FACTOR", own_steps.GROUP)
            patch.setattr(optimizers, "GROUP", own_steps.FACTOR)
        elif broken == "group":
            patch.setattr(stored_layer, "grouping", lambda *_: parameter_names.no_groups)
        else:
            usual = around_step._with_gradient
            patch.setattr(around_step, "_with_gradient", lambda those: usual(those)[::-1])
        run = npp.train(
            spaces.mixed(), spaces.vectors, LOSS, steps=12, seed=1, run_dir=tmp_path / "run",
            optimizer_options=OPTIONS, recipe={**RECIPE, **more},
        )  # fmt: skip
        oracle = plain_loop(
            run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=0.05,
            options=OPTIONS, split=split, **more,
        )  # fmt: skip
        assert_same_bits(run, oracle)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"match": "bias"}, r"parameter_groups: expected a list such as"),
        ([{"weight_decay": 0.0}], r"parameter_groups\[0\]: expected match and options"),
        ([{"match": "biass"}], r"\[0\]: match: expected bias, norm, vector or a pattern"),
        ([{"match": "bias", "lr": 0.1}], r"\[0\]: expected lr_factor, .* found lr=0.1"),
        ([{"match": "bias", "lr_factor": -1}], r"\[0\]: lr_factor: expected 0 or more, found -1"),
        ([{"match": "bias", "decay": 0.1}], r"\[0\]: optimizer SGD has no option 'decay'"),
        ([{"match": "bias", "momentum": -1}], r"\[0\]: optimizer SGD: .*Invalid momentum"),
        ([{"match": "bias", "alpha_lr": 1}], r"\[0\]: expected options of weights, found alpha_lr"),
        ([{"match": "tail.*"}], r"\[0\]: expected match=tail.* found none; .* stem.weight, head"),
        ([{"match": "*.*"}, {"match": "norm"}], r"\[1\]: expected match=norm .* no group before"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, groups, message):
    with pytest.raises(npp.ConfigError, match=message) as caught:
        npp.train(
            spaces.mixed(), spaces.vectors, LOSS, steps=2, run_dir=tmp_path / "run",
            recipe={"parameter_groups": groups},
        )  # fmt: skip
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_two_dimensions_or_more(tmp_path):
    """``vector`` is what has fewer, as many recipes spare it of decay."""
    recipe = {"parameter_groups": [{"match": "vector", "weight_decay": 0.0}]}

    def vectors_apart(block, module):
        few, many = [], []
        for p in module.parameters():
            (few if p.dim() < 2 else many).append(p)
        return [{"params": many}, {"params": few, "weight_decay": 0.0}]

    check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(1,), steps=6, optimizer="AdamW",
        options={"weight_decay": 0.3}, recipe=recipe, split=vectors_apart,
    )  # fmt: skip

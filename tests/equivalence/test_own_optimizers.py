"""Optimizers of a user's own: the bits of a plain loop with them, and refusals of what cannot."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.api.keywords import Stated
from naspipe.api.train import given_recipe
from naspipe.checks import optimizer as own_optimizers
from naspipe.checks.optimizer import check_optimizer
from naspipe.config.recipe import Recipe
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, check, plain_loop, restless
from tests.faults.helpers import Calm, Ends, fail

LOSS = nn.CrossEntropyLoss()


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, with a count of its steps that a checkpoint must bring back."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                self.step_one(p, group, self.state[p])

    def step_one(self, p, group, state):
        if not state:
            state |= {"momentum": torch.zeros_like(p), "step": 0}
        state["step"] += 1
        (first, second), lr = group["betas"], group["lr"] / state["step"]
        update = state["momentum"].lerp(p.grad, 1 - first).sign_()
        p.mul_(1 - lr * group["weight_decay"]).sub_(update, alpha=lr)
        state["momentum"].lerp_(p.grad, 1 - second)


def lion(params):
    return Lion(params, lr=0.01, weight_decay=0.1)


@pytest.mark.parametrize(
    ("optimizer", "options"), [(Lion, {"weight_decay": 0.1}), (partial(Lion, betas=(0.5, 0.9)), {})]
)
def test_bits_of_a_class(tmp_path, monkeypatch, optimizer, options):
    restless(monkeypatch)
    check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(1, 2), steps=10, lr=0.01,
        optimizer=optimizer, options=options, execution={"memory_budget": "1.5x"},
    )  # fmt: skip


def train(path, data, stages, optimizer=lion, **more):
    return npp.train(
        spaces.mixed(), data, LOSS, steps=12, seed=1, stages=stages, run_dir=path,
        optimizer=optimizer, execution={"checkpoint_every": 3, "window": 3}, **more,
    )  # fmt: skip


def test_a_function_s_own_rate_and_a_resume(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(npp.NaspipeError, match="injected"):
        train(path, Ends(spaces.vectors, 9, fail, tmp_path / "marker"), 2)
    with pytest.raises(npp.ConfigError, match="is another run: its recipe"):
        train(path, Calm(spaces.vectors), 1, Lion, resume=True)
    run = train(path, Calm(spaces.vectors), 1, resume=True)
    recipe = run.manifest["definition"]["recipe"]
    assert (recipe["optimizer"], recipe["lr"]) == (f"{__name__}:lion", 0.01)
    oracle = plain_loop(
        run.space, spaces.vectors, LOSS, run, seed=1, optimizer=Lion, lr=0.01,
        options={"weight_decay": 0.1},
    )  # fmt: skip
    assert_same_bits(run, oracle)


def test_it_has_parameter_groups_and_a_name(tmp_path):
    """``module:name`` is the same optimizer, on the command line and in a recipe file."""
    groups = [{"match": ["bias", "norm"], "weight_decay": 0.0}]

    def split(block, module):
        few, many = [], []
        for part in module.modules():
            is_norm = isinstance(part, nn.LayerNorm | nn.BatchNorm1d)
            for key, p in part.named_parameters(recurse=False):
                (few if is_norm or key == "bias" else many).append(p)
        return [{"params": many}, {"params": few, "weight_decay": 0.0}]

    run = npp.train(
        spaces.mixed(), spaces.vectors, LOSS, steps=6, seed=1, run_dir=tmp_path / "run", lr=0.01,
        optimizer=f"{__name__}:Lion", optimizer_options={"weight_decay": 0.2},
        recipe={"parameter_groups": groups},
    )  # fmt: skip
    oracle = plain_loop(
        run.space, spaces.vectors, LOSS, run, seed=1, optimizer=Lion, lr=0.01,
        options={"weight_decay": 0.2}, split=split,
    )  # fmt: skip
    assert_same_bits(run, oracle)


def recipe_of(optimizer, recipe=None):
    said = Stated.of(npp.train, keywords={"optimizer": optimizer})
    return given_recipe(recipe, said, 1)


def test_names():
    assert recipe_of(torch.optim.AdamW) == Recipe(optimizer="AdamW")
    found = recipe_of(partial(Lion, betas=(0.5, 0.9)), {"lr": 0.5})
    assert found.optimizer == f"{__name__}:Lion(betas=(0.5, 0.9))" and found.lr == 0.5
    assert recipe_of(Lion).lr == 1e-3


class Counting(Lion):
    """Keeps its step in the group, as schedule-free optimizers do."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            for p in (p for p in group["params"] if p.grad is not None):
                p.data.sub_(p.grad, alpha=group["lr"] / group["k"])


class Normed(Lion):
    """Divides by the norm of all gradients."""

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.1)
        super().step()


class Decaying(Lion):
    def step(self, closure=None):
        super().step()
        for p in self.param_groups[0]["params"]:
            p.data.mul_(0.9)


class Deaf(Lion):
    def step_one(self, p, group, state):
        super().step_one(p, {**group, "lr": 0.1}, state)


class Growing(Lion):
    def step_one(self, p, group, state):
        super().step_one(p, group, state)
        if state["step"] == 2:
            state["late"] = torch.zeros_like(p)


class Strange(Lion):
    def step_one(self, p, group, state):
        super().step_one(p, group, state)
        state["history"] = [1]


class Closing(Lion):
    def step(self, closure):
        closure()


class Asking(Lion):
    def step(self, closure=None):
        closure()


def two_rates(params):
    first, *others = params
    groups = [{"params": [first], "lr": 1.0}, {"params": others}]
    return Lion([each for each in groups if each["params"]], lr=0.5)


REFUSALS = {
    Counting: "it keeps something besides the state of each parameter",
    Normed: "what it does to one parameter depends on others",
    Decaying: "it changes parameters without a gradient",
    Deaf: "its steps do not heed the lr of its groups",
    Growing: "what it keeps of a parameter grows after the first step",
    Strange: "it keeps history of type list; keep tensors and numbers",
    Closing: "its step needs a closure",
    two_rates: "sets the lr of its groups to one rate, found 0.5, 1.0",
    partial(torch.optim.LBFGS): "it needs a closure and one state over all",
}


@pytest.mark.parametrize("optimizer", REFUSALS, ids=lambda each: getattr(each, "__name__", "LBFGS"))
def test_what_does_not_work_per_layer_is_refused(optimizer):
    with pytest.raises(npp.ConfigError, match=f"does not work per layer: .*{REFUSALS[optimizer]}"):
        check_optimizer(recipe_of(optimizer))


@pytest.mark.parametrize(
    ("optimizer", "options", "message"),
    [
        (Asking, {}, r"steps without a closure, found TypeError: 'NoneType'.*\(.*py:\d+\)"),
        (lambda: None, {}, "expected to be called with parameters and options, found TypeError"),
        (lambda params: params, {}, "returns a torch.optim.Optimizer, found it to return a list"),
        (Lion, {"decay": 1}, "has no option 'decay': expected betas, weight_decay, or of arch"),
        (torch.optim.SGD([torch.zeros(1)], lr=0.1), {}, "found the SGD of a whole network; give"),
        (0.5, {}, "expected a name, a class or a function that makes one, found float 0.5"),
        ("nowhere:Lion", {}, "nowhere:Lion: expected module:attribute"),
        ("Lionn", {}, "unknown optimizer 'Lionn': expected SGD, .* or your own as module:name"),
        (3, {}, "unknown optimizer '3': expected SGD"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_line(tmp_path, optimizer, options, message):
    with pytest.raises(npp.ConfigError, match=message) as caught:
        train(tmp_path / "run", spaces.vectors, 1, optimizer, optimizer_options=options)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_a_group_of_its_own_and_one_of_the_recipe_are_too_many(tmp_path):
    def several(params):
        lists = [each["params"] if isinstance(each, dict) else [each] for each in params]
        return Lion([{"params": [p]} for each in lists for p in each])

    with pytest.raises(npp.ConfigError, match="expected it to keep the 2 groups"):
        train(
            tmp_path / "run", spaces.vectors, 1, several, lr=0.1,
            recipe={"parameter_groups": [{"match": "*.*.norm.*"}]},
        )  # fmt: skip


def test_without_the_check_bits_are_lost(tmp_path, monkeypatch):
    """That what is refused must be: an optimizer that counts in its group, on two stages."""
    monkeypatch.setattr(own_optimizers, "_why_not_its_steps", lambda make: "")
    restless(monkeypatch)
    with pytest.raises(AssertionError):
        check(
            tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(2,), steps=10, lr=0.1,
            optimizer=Counting,
        )  # fmt: skip

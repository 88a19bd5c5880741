"""Layers that are on the device only while needed: the bits of the plain loop at any budget."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.store.access_log import read_run_accesses
from naspipe.store.metrics import summarize
from tests.equivalence import spaces
from tests.equivalence.harness import check
from tests.thinned import long
from tests.worker.small_parts import Stash

MOMENTUM = {"momentum": 0.9, "weight_decay": 1e-4}
LEAST = "0.001x"
"""Raised to the least budget that a stage can run with."""


SGD, ADAM = ("SGD", MOMENTUM), ("Adam", None)


@pytest.mark.parametrize(
    ("budget", "recompute", "partition", "optimizer"),
    [
        long(LEAST, False, "balanced", SGD), (LEAST, True, "static", ADAM),
        long("1.5x", False, "static", SGD), ("1.5x", True, "balanced", ADAM),
        long("10x", False, "static", ADAM), ("10x", True, "balanced", SGD),
    ],
)  # fmt: skip
def test_every_budget_keeps_the_bits(tmp_path, budget, recompute, partition, optimizer):
    """Every pair of these; on real spaces the whole product is scripts/check_memory.py."""
    name, options = optimizer
    check(
        tmp_path, spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=15,
        stages=(1, 3), optimizer=name, options=options, lr=0.01,
        execution={"recompute": recompute, "partition": partition, "memory_budget": budget},
    )  # fmt: skip


@pytest.mark.parametrize("rule", [npp.Frozen(), npp.Lag(4), long(npp.Exact())])
def test_shared_layers_stay_on_the_device(tmp_path, rule):
    check(
        tmp_path, spaces.mixed(rule, rule), spaces.vectors, nn.CrossEntropyLoss(), steps=25,
        stages=(2,), options=MOMENTUM, execution={"memory_budget": LEAST},
    )  # fmt: skip


@pytest.mark.parametrize("make", [long(spaces.several), spaces.maps, spaces.memory])
def test_other_spaces_at_the_least_budget(tmp_path, make):
    data = {spaces.several: spaces.vectors, spaces.maps: spaces.images,
            spaces.memory: spaces.sequences}[make]  # fmt: skip
    check(
        tmp_path, make(), data, nn.CrossEntropyLoss(), steps=25, stages=(2,), optimizer="Adam",
        lr=1e-3, execution={"memory_budget": LEAST},
    )  # fmt: skip


def test_without_the_predictor_the_bits_are_the_same_and_hits_fewer(tmp_path):
    rates = []
    for prefetch in (True, False):
        (run,) = check(
            tmp_path, spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=40,
            stages=(2,), execution={"memory_budget": "2x", "prefetch": prefetch},
        )  # fmt: skip
        rates.append(summarize(read_run_accesses(run.directory.path), 1).hit_rate)
        assert run.manifest["measured"]["stages"][0]["load_bytes"] > 0
    assert rates[1] < rates[0]


def test_a_budget_below_the_least_is_refused_before_training(tmp_path):
    with pytest.raises(ConfigError, match=r"memory budget: expected at least [0-9]+ bytes"):
        npp.train(
            spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=5,
            run_dir=tmp_path / "run", execution={"memory_budget": "1KiB"},
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


class Stashing(nn.Module):
    """With a weight of its own in each candidate."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(24, 24)

    def forward(self, x):
        return x + Stash.apply(self.linear(x), self.linear.bias)


class Curved(nn.Module):
    """Calls what refuses to be called while autograd is watched."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(24, 24)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        slope = torch.func.grad(lambda v: v.sin().sum())(x)
        return x + self.linear(slope) * self.calls.clamp(max=2)


def users(kind):
    return npp.Space("users", [
        npp.Shared("stem", lambda: nn.Linear(16, 24), rule=npp.Lag(4)),
        *(npp.Block([kind, lambda: nn.Linear(24, 24)]) for _ in range(3)),
        npp.Shared("head", lambda: nn.Linear(24, 10), rule=npp.Lag(4)),
    ])  # fmt: skip


@pytest.mark.parametrize("kind", [Stashing, Curved])
def test_layers_of_which_autograd_does_not_know_all(tmp_path, kind):
    check(
        tmp_path, users(kind), spaces.vectors, nn.CrossEntropyLoss(), steps=25,
        stages=(2,), options=MOMENTUM, execution={"memory_budget": "2x"},
    )  # fmt: skip


class Forgetful(nn.Module):
    """Runs out of memory in every seventh call, and half-way in the backward of another."""

    calls = 0

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(24), nn.Linear(24, 24)

    def forward(self, x):
        Forgetful.calls += 1
        hidden = self.norm(x)
        if Forgetful.calls % 7 == 0:
            raise torch.OutOfMemoryError("injected")
        if Forgetful.calls % 7 == 3 and hidden.requires_grad:
            hidden.register_hook(_fail_once())
        return x + self.linear(hidden)


def _fail_once():
    failed = []

    def hook(gradient):
        if not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("injected")

    return hook


@pytest.mark.parametrize("recompute", [False, True])
def test_a_task_that_ran_out_of_memory_is_run_again(tmp_path, recompute, computes_here):
    """Statistics and half-made gradients of the first try leave no trace."""

    class Faultless(Forgetful):
        def forward(self, x):
            return x + self.linear(self.norm(x))

    def space(kind):
        return npp.Space("short", [
            npp.Shared("stem", lambda: nn.Linear(16, 24), rule=npp.Lag(3)),
            *(npp.Block([kind, kind]) for _ in range(4)),
            npp.Shared("head", lambda: nn.Linear(24, 10)),
        ])  # fmt: skip

    runs = [
        npp.train(
            space(kind), spaces.vectors, nn.CrossEntropyLoss(), steps=20, seed=1, stages=1,
            run_dir=tmp_path / kind.__name__,
            execution={"recompute": recompute, "memory_budget": "1x"},
        )
        for kind in (Forgetful, Faultless)
    ]  # fmt: skip
    assert Forgetful.calls > 100
    finals = [list(run.directory.read_losses()) for run in runs]
    assert [loss.bits for loss in finals[0]] == [loss.bits for loss in finals[1]]

"""Layers without state: the bits of the plain loop, and of runs that ordered them, too."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.api import planning as run_plan
from naspipe.store.access_order import access_orders
from naspipe.store.checkpoints import read_checkpoint
from naspipe.store.compare import RecordedRun
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, check, plain_loop, restless
from tests.faults.helpers import Calm, Ends, interrupt, interrupt_and_resume, train

LEAST = {"memory_budget": "0.001x"}
KNOWN = ("stem", *(f"{block}.{candidate}" for block in range(5) for candidate in (0, 1, 2)))


class Drop(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.share = share

    def forward(self, x):
        return nn.functional.dropout(x, self.share, self.training)


class Pool(nn.Module):
    def forward(self, x):
        return torch.relu(nn.functional.max_pool1d(x.unsqueeze(1), 3, 1, 1).squeeze(1))


class Centred(nn.Module):
    """No parameters, and a buffer that each forward reads and changes."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        return x - self.mean.clone()


def passing():
    """Skips, pools and dropout; a candidate with buffers alone; a stem that keeps nothing."""
    kinds = [nn.Identity, Pool, lambda: Drop(0.3), lambda: Centred(16)]
    return npp.Space("passing", [
        npp.Shared("stem", nn.Flatten),
        *(npp.Block([*kinds, lambda: nn.Linear(16, 16)], kind="any") for _ in range(5)),
        npp.Shared("head", lambda: nn.Linear(16, 10)),
    ])  # fmt: skip


@pytest.fixture(scope="module")
def unaware(tmp_path_factory):
    """A run that takes each layer for one with state."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_plan, "stateless_layers", lambda space: frozenset())
        path = tmp_path_factory.mktemp("unaware") / "run"
        return train(path, Calm(spaces.vectors), space=passing(), stages=2)


def orders(run):
    return access_orders(RecordedRun(run.directory.path).accesses)


def test_bits_and_orders(tmp_path, unaware):
    """On one stage, and on two with the least memory and layers that move."""
    for stages, execution in ((1, {}), (2, {"recompute": True, **LEAST})):
        (run,) = check(
            tmp_path, passing(), Calm(spaces.vectors), nn.CrossEntropyLoss(), stages=(stages,),
            steps=24, lr=0.02, options={"momentum": 0.9, "weight_decay": 1e-4},
            execution={"checkpoint_every": 5, **execution},
        )  # fmt: skip
        assert tuple(run.manifest["stateless"]) == KNOWN
        assert run.manifest["definition"] == unaware.manifest["definition"]
        assert run.losses == unaware.losses
        for layer, order in orders(run).items():
            is_known = RecordedRun(run.directory.path).labels.is_stateless(layer)
            assert ("B" in order) is not is_known
            if not is_known:
                assert order == orders(unaware)[layer]
        versions = read_checkpoint(run.directory.checkpoint("final")).versions
        assert {versions.get(f"0/{label}", -1) for label in KNOWN} == {-1}


def test_a_run_goes_on_without_versions_of_them(tmp_path, monkeypatch):
    restless(monkeypatch)
    found = interrupt_and_resume(
        tmp_path, spaces.vectors, {"stages": 2}, {"stages": 3}, space=passing()
    )
    assert tuple(found.manifest["stateless"]) == KNOWN
    labels = RecordedRun(found.directory.path).labels
    assert not any(
        "B" in order for layer, order in orders(found).items() if labels.is_stateless(layer)
    )
    loop = plain_loop(
        passing(), spaces.vectors, nn.CrossEntropyLoss(), found, seed=1, optimizer="SGD", lr=0.02,
        options={"momentum": 0.9, "weight_decay": 1e-4},
    )  # fmt: skip
    assert_same_bits(found, loop)


def test_a_resume_with_other_layers_without_state_is_refused(tmp_path):
    path = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(npp.RunInterruptedError):
        patch.setattr(run_plan, "stateless_layers", lambda space: frozenset())
        data = Ends(Calm(spaces.vectors), 9, interrupt, tmp_path / "marker")
        train(path, data, space=passing(), stages=2)
    with pytest.raises(npp.ConfigError, match=r"same layers without state.* difference in 0\.0"):
        train(path, Calm(spaces.vectors), space=passing(), stages=2, resume=True)

"""Layers without state: the bits of the plain loop, and of runs that ordered them, too."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.frontend.given import run_plan
from naspipe.runtime.measuring.stateless_layers import stateless_layers
from naspipe.trace.access.order import access_orders
from naspipe.trace.reading.compare import RecordedRun
from naspipe.trace.snapshots.snapshot import read_checkpoint
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, check, plain_loop, restless
from tests.faults.helpers import Calm, assert_identical, interrupt_and_resume, train

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
    """A run from before it was known which layers have no state."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_plan, "stateless_layers", lambda space: frozenset())
        path = tmp_path_factory.mktemp("unaware") / "run"
        run = train(path, Calm(spaces.vectors), space=passing(), stages=2)
    manifest = run.directory.read_manifest()
    del manifest["stateless"]
    run.directory.write_manifest(manifest)
    return run


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
        assert_identical(unaware, run)
        assert_identical(run, unaware)
        for layer, order in orders(run).items():
            is_known = RecordedRun(run.directory.path).labels.is_stateless(layer)
            assert ("B" in order) is not is_known
            if not is_known:
                assert order == orders(unaware)[layer]
        versions = read_checkpoint(run.directory.checkpoint("final")).versions
        assert {versions.get(f"0/{label}", -1) for label in KNOWN} == {-1}


def test_a_run_that_ordered_them_goes_on_without(tmp_path, monkeypatch, unaware):
    """Its checkpoint calls their versions by numbers, and so does the first part of its log."""
    restless(monkeypatch)
    known = iter([frozenset(), stateless_layers(passing())])
    monkeypatch.setattr(run_plan, "stateless_layers", lambda space: next(known))
    found = interrupt_and_resume(
        tmp_path, spaces.vectors, {"stages": 2}, {"stages": 3}, space=passing()
    )
    assert tuple(found.manifest["stateless"]) == KNOWN
    assert any("B" in order for layer, order in orders(found).items() if layer.candidate == 0)
    assert_identical(unaware, found)
    loop = plain_loop(
        passing(), spaces.vectors, nn.CrossEntropyLoss(), found, seed=1, optimizer="SGD", lr=0.02,
        options={"momentum": 0.9, "weight_decay": 1e-4},
    )  # fmt: skip
    assert_same_bits(found, loop)

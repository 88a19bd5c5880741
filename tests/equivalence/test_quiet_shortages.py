"""Shortages of memory that torch does not raise, or that come beside a block, leave the bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.machine import out_of_memory as shortages
from naspipe.worker.placement import Placement
from tests.equivalence import spaces

LOSS = nn.CrossEntropyLoss()


@pytest.fixture
def refused(monkeypatch):
    """How often the allocator had no memory, as torch counts it on a GPU."""
    count = [0]
    monkeypatch.setattr(shortages, "refused_allocations", lambda: count[0])
    yield count
    monkeypatch.undo()
    shortages.note()


class Quiet(nn.Module):
    """Counts refused allocations in every fifth call, and in the backward of another."""

    calls = 0
    refused: list[int] = []  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(24), nn.Linear(24, 24)

    def forward(self, x):
        Quiet.calls += 1
        hidden = self.norm(x)
        if Quiet.calls % 5 == 0:
            Quiet.refused[0] += 1
            hidden = hidden * 1.01  # another algorithm, other bits
        if Quiet.calls % 5 == 2 and hidden.requires_grad:
            hidden.register_hook(_refuse_once())
        return x + self.linear(hidden)


def _refuse_once():
    failed = []

    def hook(gradient):
        if failed:
            return gradient
        failed.append(1)
        Quiet.refused[0] += 1
        return gradient * 1.01

    return hook


class Ample(Quiet):
    def forward(self, x):
        return x + self.linear(self.norm(x))


def _train(path, kind, **options):
    space = npp.Space("quiet", [
        npp.Shared("stem", lambda: nn.Linear(16, 24), rule=npp.Lag(3)),
        *(npp.Block([kind, kind]) for _ in range(3)),
        npp.Shared("head", lambda: nn.Linear(24, 10)),
    ])  # fmt: skip
    return npp.train(space, spaces.vectors, LOSS, steps=12, seed=1, run_dir=path, **options)


def _bits(run):
    return [loss.bits for loss in run.directory.read_losses()]


@pytest.mark.parametrize("recompute", [False, True])
def test_a_block_with_another_algorithm_is_computed_again(tmp_path, refused, recompute):
    Quiet.calls, Quiet.refused = 0, refused
    quiet, ample = (
        _train(tmp_path / kind.__name__, kind, execution={"recompute": recompute})
        for kind in (Quiet, Ample)
    )
    assert _bits(quiet) == _bits(ample)
    assert quiet.manifest["measured"]["stages"][0]["memory_retries"] > 5


class AlwaysQuiet(Quiet):
    def forward(self, x):
        Quiet.refused[0] += 1
        return x + self.linear(self.norm(x))


def test_where_nothing_is_left_to_free_the_run_ends_in_one_line(tmp_path, refused):
    Quiet.refused = refused
    with pytest.raises(ConfigError, match=r"^out of device memory in 0\.0F.*workspace.*$"):
        _train(tmp_path / "run", AlwaysQuiet)


@pytest.mark.parametrize("where", ["make_room", "adopt", "receive"])
def test_what_is_done_beside_blocks_has_a_second_try(tmp_path, monkeypatch, where):
    """Each third time that a WRITE, a layer or an input needs memory, there is none."""
    usual, calls = getattr(Placement, where), [0]

    def short(placement, *arguments):
        calls[0] += 1
        if calls[0] % 3 == 0:
            calls[0] += 1
            raise torch.OutOfMemoryError("injected")
        return usual(placement, *arguments)

    ample = _train(tmp_path / "ample", Ample, stages=2)
    monkeypatch.setattr(Placement, where, short)
    run = _train(tmp_path / "short", Ample, stages=2)
    assert _bits(run) == _bits(ample)
    retries = sum(each["memory_retries"] for each in run.manifest["measured"]["stages"])
    assert retries > 2

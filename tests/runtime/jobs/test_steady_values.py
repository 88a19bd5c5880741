"""What layers and losses read from outside must stay; what they keep there need not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp

SCALE = {"now": 1.0}
KNOWN: dict[int, torch.Tensor] = {}
CALLS = 0


class Positions(nn.Linear):
    """Keeps what it made once, counts its calls, and multiplies by what somebody may change."""

    def forward(self, x):
        global CALLS
        CALLS += 1
        if len(x) not in KNOWN:
            KNOWN[len(x)] = torch.ones(len(x), 1)
        return super().forward(x * KNOWN[len(x)])


def cooled(output, target):
    return functional.cross_entropy(output / SCALE["now"], target)


class Cooling(npp.Observer):
    """From the third loss on."""

    told, losses = "", 0

    def on_loss(self, stream, sequence_id, loss):
        self.losses += 1
        if self.losses > 2:
            SCALE["now"] *= 0.9

    def on_note(self, text):
        self.told += text


def data(seed, y):
    generator = torch.Generator().manual_seed(y)
    return {"input": torch.randn(4, 8, generator=generator), "target": torch.arange(4)}


def train(path, steps, stages, observer=None):
    blocks = [npp.Block([lambda: Positions(8, 8), lambda: nn.Linear(8, 8)]) for _ in range(2)]
    space = npp.Space("s", [*blocks, npp.Shared("head", lambda: nn.Linear(8, 4))])
    return npp.train(
        space, data, cooled, steps=steps, stages=stages, run_dir=path, observer=observer
    )


@pytest.fixture(autouse=True)
def as_before():
    SCALE["now"] = 1.0
    KNOWN.clear()


@pytest.mark.parametrize("stages", [1, 2])
def test_an_observer_that_changes_what_the_loss_reads_ends_the_run(tmp_path, stages):
    message = r"an observer changes .*SCALE, which was \{now: 1.0\} and is \{now: 0.[0-9]*\}, that"
    with pytest.raises(npp.ConfigError, match=message):
        train(tmp_path / "run", 30, stages, Cooling())


def test_what_changed_in_the_last_steps_is_noted(tmp_path):
    observer = Cooling()
    run = train(tmp_path / "run", 3, 1, observer)
    assert run.manifest["status"] == "complete"
    assert "SCALE, which was {now: 1.0} and is {now: 0.9}: it changed while" in observer.told


def test_caches_and_counters_of_layers_may_change(tmp_path):
    run = train(tmp_path / "run", 8, 1)
    assert run.manifest["status"] == "complete"

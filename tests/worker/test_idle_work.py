"""Layers that a stage makes while it waits."""

from __future__ import annotations

from torch import nn

import naspipe as npp
from naspipe.engine.events import SubnetAdmitted
from naspipe.worker.driver import StageDriver
from tests.equivalence import spaces


def test_a_stage_that_never_waits_does_not_gather_layers(tmp_path, monkeypatch, computes_here):
    """One stage has no peer to wait for: what it was asked to make must not grow."""
    lengths = []

    def tell(self, event):
        if isinstance(event, SubnetAdmitted):
            lengths.append(len(self._unmade))
        own(self, event)

    own = StageDriver._tell
    monkeypatch.setattr(StageDriver, "_tell", tell)
    space, steps = spaces.mixed(), 60
    npp.train(
        space, spaces.vectors, nn.CrossEntropyLoss(), steps=steps, stages=1,
        run_dir=tmp_path / "run",
    )  # fmt: skip
    assert len(lengths) == steps
    assert max(lengths) <= sum(space.candidate_counts) + len(space) < steps * len(space) / 4

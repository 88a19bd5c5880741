"""What a start waits for is said, where it takes long."""

from __future__ import annotations

import pytest
from torch import nn

import naspipe as npp
from naspipe.api import planning as run_plan
from naspipe.machine import forking as apart
from naspipe.profiling import profiles as profile_apart
from naspipe.wire.reports import Observer
from tests.equivalence.spaces import mixed, vectors


class Noted(Observer):
    def __init__(self):
        self.notes = []

    def on_note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_a_start_says_what_it_waits_for(seconds, tmp_path, monkeypatch):
    monkeypatch.setattr(run_plan, "cached_profile", lambda workload, measure, **_: measure())
    for module in (apart, profile_apart):
        monkeypatch.setattr(module, "SLOW_SECONDS", seconds)
    observer, space = Noted(), mixed()
    npp.train(
        space, vectors, nn.CrossEntropyLoss(), steps=2, stages=2, run_dir=tmp_path / "run",
        observer=observer,
    )  # fmt: skip
    said = [note for note in observer.notes if "layers" in note or "shapes" in note]
    if seconds:
        assert not said
    else:
        assert said[0] == f"following shapes through the candidates of space {space.name}"
        assert said[1].startswith("profiling ") and said[1].endswith(" layers")

"""What a run with split backwards says of the candidates that stayed whole."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn

import naspipe as npp
from naspipe.api.finished_log import WholeBackwards, take_whole_backwards
from naspipe.config.blocks import Block, Shared
from naspipe.config.ids import AccessKind
from naspipe.config.space import Space
from naspipe.plan.chains import EVERY_OPTION
from naspipe.store.compare import RecordedRun, compare_runs
from naspipe.wire.reports import Observer
from tests.equivalence import spaces


class Hooked(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        y.register_hook(lambda gradient: gradient * 0.5)
        return y


class Notes(Observer):
    def __init__(self):
        self.lines = []

    def on_note(self, text):
        self.lines.append(text)


def space():
    return Space(
        "whole",
        [
            Block([lambda: nn.Linear(16, 16)]),
            *(Block([lambda: nn.Linear(16, 16), lambda: Hooked(16, 16)], kind="k") for _ in "ab"),
            Shared("head", lambda: nn.Linear(16, 10)),
        ],
    )


def trained(tmp_path, backward, stages=1):
    notes = Notes()
    run = npp.train(
        space(), spaces.vectors, nn.CrossEntropyLoss(), steps=6, lr=0.1, stages=stages,
        run_dir=tmp_path / backward, observer=notes, execution={"backward": backward},
    )  # fmt: skip
    said = [line for line in notes.lines if "backward" in line]
    return said, run


@pytest.mark.parametrize("stages", [1, 2])
def test_a_run_says_which_candidates_stayed_whole(tmp_path, stages):
    said, run = trained(tmp_path, "split", stages)
    measured = run.manifest["measured"]
    line = (
        "split backward: 1 of 4 candidates stayed whole: 1.1 (its forward puts a hook on a tensor)"
    )
    assert said == [line] and measured["whole_backwards"] == line
    assert len(measured["stages"]) == stages
    assert not any("whole_backwards" in stage for stage in measured["stages"])


def test_a_run_with_whole_backwards_says_nothing(tmp_path):
    said, run = trained(tmp_path, "whole")
    assert said == [] and "whole_backwards" not in run.manifest["measured"]
    assert not any(access.owed_ns for access in RecordedRun(run.directory.path).accesses)


def test_a_run_records_what_its_writes_owed(tmp_path):
    """And it is the same run to whoever compares it."""
    runs = [trained(tmp_path, backward, 2)[1].directory.path for backward in ("whole", "split")]
    accesses = RecordedRun(runs[1]).accesses
    owing = [access for access in accesses if access.owed_ns]
    assert {access.kind for access in owing} == {AccessKind.WRITE}
    assert {access.layer.block for access in owing} >= {0, 3}
    assert not any(access.layer.candidate for access in owing), "1.1 and 2.1 stay whole"
    assert all(0 < access.owed_ns <= access.end_ns - access.start_ns for access in owing)
    (comparison,) = compare_runs(runs)
    assert comparison.is_identical, str(comparison)


def stream(split=EVERY_OPTION, is_trained=True):
    blocks = [Block([nn.Identity] * 6, kind=kind) for kind in ("k", "k", None)]
    workload = SimpleNamespace(space=Space("s", blocks), is_trained=is_trained)
    return SimpleNamespace(workload=workload, split=split)


def test_three_reasons_are_named():
    stages = [
        {"whole_backwards": [[0, 0, option, "of a kind"] for option in (3, 1, 2)]},
        {"whole_backwards": [[0, 0, 1, "of a kind"], [0, 2, 0, "b"], [1, 0, 0, "a"]]},
        {"whole_backwards": [[0, 2, 1, "c"], [0, 2, 2, "d"], [0, 2, 3, "e"]], "blocks": 3},
    ]
    first, second, *others = take_whole_backwards(
        [stream(), stream(), stream(frozenset()), stream(is_trained=False)], stages
    )
    assert first == WholeBackwards(
        7,
        "split backward: 7 of 12 candidates stayed whole: 3 such as 0.1 (of a kind), 2.0 (b), "
        "2.1 (c), 2 for other reasons",
    )
    assert second.line == "split backward: 1 of 12 candidates stayed whole: 0.0 (a)"
    assert others == [WholeBackwards(0, "")] * 2
    assert stages == [{}, {}, {"blocks": 3}]


def test_a_stream_of_which_none_stayed_whole():
    (found,) = take_whole_backwards([stream({(0, 0), (1, 0), (2, 5)})], [{"whole_backwards": []}])
    assert found == WholeBackwards(0, "split backward: 0 of 2 candidates stayed whole")

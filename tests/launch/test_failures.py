"""A failure anywhere ends the run everywhere, soon, with its cause, and leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError, StageFailedError
from tests.equivalence import spaces
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()


class Breaks(nn.Module):
    """Raises, or ends its process, at its twentieth forward: later than any in the profile.

    Its count follows it from stage to stage, as all buffers do.
    """

    def __init__(self, how):
        super().__init__()
        self.linear, self.how = nn.Linear(24, 24), how
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        if self.calls == 20:
            self.how()
        return self.linear(x)


def divide():
    return 1 / 0


def space(position, how):
    blocks = [npp.Block([lambda: spaces.Residual(24, nn.LayerNorm)]) for _ in range(6)]
    blocks[position] = npp.Block([lambda: Breaks(how)])
    return npp.Space("breaks", [
        npp.Shared("stem", lambda: nn.Linear(16, 24), rule=npp.Lag(3)),
        *blocks,
        npp.Shared("head", lambda: nn.Linear(24, 10)),
    ])  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch, tmp_path):
    """No process and no temporary file of the test is there afterwards."""
    with tempfile.TemporaryDirectory(prefix="np") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield
        assert multiprocessing.active_children() == []
        assert list(Path(directory).glob("naspipe*")) == []


@pytest.mark.parametrize(
    ("stages", "position"), [(1, 2), (2, 0), long(2, 5), long(4, 0), (4, 3), (4, 5)]
)
def test_a_layer_that_raises(tmp_path, stages, position):
    start = time.monotonic()
    with pytest.raises(StageFailedError) as caught:
        npp.train(
            space(position, divide), spaces.vectors, LOSS, steps=50, stages=stages,
            run_dir=tmp_path / "run",
        )  # fmt: skip
    assert time.monotonic() - start < 10
    text = caught.value.traceback_text
    assert text.splitlines()[-2:] == [
        "ZeroDivisionError: division by zero",
        f"in layer {position}.0 (Breaks), called with [12, 24]",
    ]
    assert "in divide" in text and "segment.py" not in text and "torch/nn" not in text
    assert caught.value.task.startswith("0.19F@") and f"layer {position}.0" in caught.value.task
    assert npp.Run(space(position, divide), tmp_path / "run").manifest["status"] == "failed"


@pytest.mark.parametrize("stages", [2, long(4)])
def test_a_stage_that_dies(tmp_path, stages):
    start = time.monotonic()
    said = (
        r"exit status 7 and no report; go on with the same call, with run_dir='.*' and resume=True$"
    )
    with pytest.raises(StageFailedError, match=said):
        npp.train(
            space(3, lambda: os._exit(7)), spaces.vectors, LOSS, steps=50, stages=stages,
            run_dir=tmp_path / "run", execution={"timeout_seconds": 60.0},
        )  # fmt: skip
    assert time.monotonic() - start < 10


def test_silence_is_given_up_after_the_time_out(tmp_path):
    start = time.monotonic()
    with pytest.raises(StageFailedError, match=r"it has been at this for [1-9] s") as caught:
        npp.train(
            space(0, lambda: time.sleep(30)), spaces.vectors, LOSS, steps=50, stages=2,
            run_dir=tmp_path / "run", execution={"timeout_seconds": 1.0},
        )  # fmt: skip
    assert time.monotonic() - start < 20
    assert caught.value.stage == 0, "the one that hangs, not the one that waits for it"
    assert caught.value.task == "0.19F@0 block 1 (layer 0.0)"


@pytest.mark.parametrize("stages", [2, long(4)])
def test_a_stopped_stage_is_named_with_its_task(tmp_path, stages):
    """SIGSTOP: the process is there, its heart is not."""
    with pytest.raises(
        StageFailedError, match=r"no sign of life from \S+ for [1-9] s: stopped or starved"
    ) as caught:
        npp.train(
            space(0, lambda: os.kill(os.getpid(), signal.SIGSTOP)), spaces.vectors, LOSS,
            steps=50, stages=stages, run_dir=tmp_path / "run",
            execution={"silence_seconds": 2.0},
        )  # fmt: skip
    assert caught.value.stage == 0


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(24, 24)

    def forward(self, x):
        if x.isnan().any():  # shapes alone cannot follow this, so only the run finds it
            return x
        return self.linear(x.relu_())


def test_an_edit_that_shapes_show_is_refused_before_anything_is_written(tmp_path):
    """What works in place on what it made itself may."""

    def trained(make):
        block, stem = npp.Block([make]), npp.Shared("stem", lambda: nn.Linear(16, 10))
        space = npp.Space("edits", [stem, block])
        return npp.train(space, spaces.vectors, LOSS, steps=1, run_dir=tmp_path / "run")

    with pytest.raises(ConfigError, match=r"^block 0\.0 \(ReLU\) changes its input in place"):
        trained(lambda: nn.ReLU(inplace=True))
    assert not (tmp_path / "run").exists()
    trained(lambda: nn.Sequential(nn.Linear(10, 10), nn.ReLU(inplace=True)))


class Scaled(nn.Linear):
    def forward(self, x, *fields):
        (fields[0] if fields else x).mul_(2)
        return super().forward(x)


def shifted_loss(output, target):
    target[target == 0] = 1  # which shapes alone cannot follow
    return LOSS(output, target)


@pytest.mark.parametrize(
    ("first", "fields", "loss", "expected"),
    [
        (Scaled, ("input",), LOSS, r"^block stem \(Scaled\) changes a field of its batch in place"),
        (nn.Linear, ("target",), LOSS, r"^block head \(Scaled\) changes a field of its batch"),
        (nn.Linear, (), shifted_loss, "loss shifted_loss: expected to leave its output and fields"),
    ],
)  # fmt: skip
def test_an_edit_of_the_batch_is_refused(tmp_path, first, fields, loss, expected):
    """The loss, other blocks and a forward that is computed again find the batch as it was."""
    head = (
        npp.Shared("head", lambda: Scaled(10, 10), fields=("target",))
        if fields == ("target",)
        else npp.Shared("head", lambda: nn.Linear(10, 10))
    )
    space = npp.Space("edits", [npp.Shared("stem", lambda: first(16, 10)), head])
    with pytest.raises((ConfigError, StageFailedError), match=expected):
        npp.train(space, spaces.vectors, loss, steps=2, run_dir=tmp_path / "run")


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("front", [npp.Lag(2), npp.Frozen()])
def test_an_edit_of_a_blocks_input_is_refused_with_its_name(tmp_path, recompute, front):
    blocks = [npp.Block([nn.Identity]), npp.Block([InPlace])]
    edits = npp.Space("edits", [
        npp.Shared("stem", lambda: nn.Linear(16, 24), rule=front), *blocks,
        npp.Shared("head", lambda: nn.Linear(24, 10)),
    ])  # fmt: skip
    with pytest.raises(
        StageFailedError, match=r"block 1\.0 \(InPlace\) changes its input in place"
    ):
        npp.train(
            edits, spaces.vectors, LOSS, steps=3, run_dir=tmp_path / "run",
            execution={"recompute": recompute},
        )  # fmt: skip


@pytest.mark.parametrize("rule", [npp.Lag(2), npp.Frozen()])
def test_a_forward_that_writes_is_refused_where_the_rule_forbids_it(tmp_path, rule):
    writes = npp.Space("writes", [
        npp.Shared("stem", lambda: nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24)), rule=rule),
        npp.Shared("head", lambda: nn.Linear(24, 10)),
    ])  # fmt: skip
    with pytest.raises(ConfigError, match="layer stem: its BatchNorm1d keeps running statistics"):
        npp.train(writes, spaces.vectors, LOSS, steps=3, run_dir=tmp_path / "run")


class Counts(nn.Module):
    """Writes a buffer that nothing but its forward gives away."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 24)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.linear(x)


@pytest.mark.parametrize("stages", [1, 2])
def test_input_that_only_a_stage_finds_is_still_one_line(tmp_path, stages):
    counts = npp.Space("counts", [
        npp.Shared("stem", Counts, rule=npp.Lag(2)),
        npp.Shared("head", lambda: nn.Linear(24, 10)),
    ])  # fmt: skip
    with pytest.raises(ConfigError, match="layer stem: its forward writes the buffer") as caught:
        npp.train(counts, spaces.vectors, LOSS, steps=3, stages=stages, run_dir=tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_tied_parameters_are_refused_with_both_names(tmp_path):
    weight = nn.Parameter(torch.zeros(16, 16))

    def tied():
        layer = nn.Linear(16, 16)
        layer.weight = weight
        return layer

    space = npp.Space("tied", [npp.Shared("stem", tied), npp.Shared("head", tied)])
    with pytest.raises(ConfigError, match="layers stem and head share one parameter"):
        npp.train(space, spaces.vectors, LOSS, steps=3, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()

"""Metrics of runs as they go: a line per step, the same in TensorBoard's own reader."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import naspipe as npp
from naspipe.api import recording as metrics_server
from naspipe.api.recording import Recording
from naspipe.config.definition import Definition
from naspipe.config.errors import StorageError
from naspipe.config.recipe import Recipe, learning_rate
from naspipe.store.losses import MetricsFile, read_metrics
from naspipe.store.run_directory import RunDirectory, read_heartbeat
from naspipe.wire.reports import Observer
from tests.equivalence import spaces
from tests.faults.helpers import Calm, Ends, fail, interrupt, train

NAMES = {"loss", "learning_rate", "bubble_ratio", "hit_rate", "steps_per_second"}


def scalars(path):
    """What TensorBoard reads: tag -> [(step, value)]."""
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    found = accumulators.EventAccumulator(str(path), size_guidance={"scalars": 0})
    found.Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


@pytest.mark.parametrize("stages", [1, 2])
def test_every_step_is_in_both(tmp_path, stages):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    run = npp.train(
        spaces.mixed(), spaces.vectors, npp_loss(), steps=40, lr=0.1, stages=stages,
        run_dir=tmp_path / "run", recipe={"schedule": "cosine", "warmup_steps": 5},
        execution={"tensorboard": True, "memory_budget": "2x", "bandwidth": 1e6, "prefetch": False},
    )  # fmt: skip
    rows = read_metrics(run.directory.metrics)
    recipe = Recipe(lr=0.1, schedule="cosine", warmup_steps=5)
    assert [row["step"] for row in rows] == list(range(40))
    assert [row["loss"] for row in rows] == run.losses
    assert [row["learning_rate"] for row in rows] == [
        learning_rate(recipe, y, 40) for y in range(40)
    ]
    last = rows[-1]
    assert 0 < last["bubble_ratio"] < 1 and 0 < last["hit_rate"] < 1
    assert last["hit_rate"] == pytest.approx(run.manifest["measured"]["hit_rate"], abs=0.2)
    assert last["steps_per_second"] == pytest.approx(40 / last["seconds"])
    found = scalars(run.directory.tensorboard)
    assert found.keys() == {*NAMES, "seconds", "resident_bytes", "pending"}
    for name in NAMES:
        expected = [(row["step"], row[name]) for row in rows if row[name] is not None]
        assert [step for step, _ in found[name]] == [step for step, _ in expected]
        values = np.array([value for _, value in expected], np.float32)
        assert np.array_equal(values, np.array([value for _, value in found[name]], np.float32))


def npp_loss():
    from torch import nn

    return nn.CrossEntropyLoss()


def test_a_run_that_was_interrupted_goes_on_in_its_files(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    path, board = tmp_path / "run", {"tensorboard": True}
    with pytest.raises(npp.NaspipeError, match="interrupted"):
        train(path, Ends(spaces.vectors, 9, interrupt, tmp_path / "m"), execution=board)
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 23, "loss": 1.0}\n{"step": 2')  # behind the checkpoint; torn
    run = train(path, Calm(spaces.vectors), stages=2, resume=True, execution=board)
    rows = read_metrics(run.directory.metrics)
    assert [(row["step"], row["loss"]) for row in rows] == list(enumerate(run.losses))
    assert len(list((path / "tensorboard").iterdir())) == 2
    assert [step for step, _ in scalars(path / "tensorboard")["loss"]] == list(range(24))


def test_a_run_that_starts_again_by_itself(tmp_path):
    """The steps that are taken twice are in its files once."""
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    data = Ends(spaces.vectors, 14, fail, tmp_path / "marker")
    execution = {"max_restarts": 1, "tensorboard": True}
    run = train(tmp_path / "run", data, stages=2, execution=execution)
    rows = read_metrics(run.directory.metrics)
    assert [(row["step"], row["loss"]) for row in rows] == list(enumerate(run.losses))
    assert run.manifest["life"]["generation"] == 1
    assert run.manifest["life"]["first"][0] < 14
    assert [step for step, _ in scalars(run.directory.tensorboard)["loss"]] == list(range(24))


def test_streams_have_files_of_their_own(tmp_path):
    made = [
        npp.workload(spaces.mixed(), spaces.vectors, npp_loss(), steps=6, seed=seed)
        for seed in (1, 2)
    ]
    runs = npp.train_together(made, npp.Execution(stages=1), tmp_path / "run")
    for run in runs:
        assert [row["loss"] for row in read_metrics(run.directory.metrics)] == run.losses
    assert runs[0].losses != runs[1].losses


def test_passes_of_a_step_have_their_numbers(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    run = npp.train(
        spaces.mixed(), spaces.vectors, npp_loss(), steps=6, run_dir=tmp_path / "run",
        recipe={"passes": "sandwich:1", "schedule": "linear"}, execution={"tensorboard": True},
    )  # fmt: skip
    rows = read_metrics(run.directory.metrics)
    assert [(row["step"], row["pass"]) for row in rows] == [(y // 3, y % 3) for y in range(18)]
    assert [row["loss"] for row in rows] == run.losses
    assert {row["learning_rate"] for row in rows[3:6]} == {0.05 * (1 - 1 / 6)}
    assert rows[-1]["steps_per_second"] == pytest.approx(6 / rows[-1]["seconds"])
    found = scalars(run.directory.tensorboard)
    assert {"loss/pass-0", "loss/pass-1", "loss/pass-2", "learning_rate"} < found.keys()
    assert "loss" not in found and "pass" not in found
    assert [step for step, _ in found["learning_rate"]] == list(range(6))
    of_last = np.array(run.losses[2::3], np.float32)
    assert np.array_equal(of_last, np.array([value for _, value in found["loss/pass-2"]]))


def test_probes_have_numbers_of_their_own(tmp_path):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    run = npp.train(
        spaces.mixed(), spaces.vectors, npp_loss(), steps=4, run_dir=tmp_path / "run",
        recipe={"passes": "sandwich:1", "probes": "best:2"}, execution={"tensorboard": True},
    )  # fmt: skip
    rows = read_metrics(run.directory.metrics)
    which = [{key: row[key] for key in ("probe", "pass") if key in row} for row in rows[5:10]]
    assert which == [{"probe": 0}, {"probe": 1}, {"pass": 0}, {"pass": 1}, {"pass": 2}]
    assert [row["loss"] for row in rows] == run.losses
    found = scalars(run.directory.tensorboard)
    assert {"loss/probe-0", "loss/probe-1", "loss/pass-0", "loss/pass-2"} < found.keys()
    assert not {"loss", "pass", "probe", "seconds/probe-0"} & found.keys()
    assert [step for step, _ in found["learning_rate"]] == list(range(4))


def recording(path, observer=None, **recipe):
    path.mkdir()
    definition = Definition(space="s", steps=9, recipe=Recipe(**recipe))
    return Recording([RunDirectory(path)], [definition], observer or Observer(), False)


def test_steps_are_written_in_order_whatever_order_they_come_in(tmp_path):
    with recording(tmp_path / "run") as made:
        made.on_begin(0, [0])
        made.on_busy(0, 30, 100)
        made.on_busy(1, 50, 100)
        made.on_hits(0, 3, 4)
        made.on_loss(0, 1, math.nan)
        assert read_metrics(tmp_path / "run/metrics.jsonl") == []
        made.on_loss(0, 0, 2.0)
        made.on_hits(1, 4, 4)
        made.on_validation(0, 1, {"top1": 0.5})
        made.on_pending(0, 3)
        made.on_pending(1, 2)
        made.on_loss(0, 2, math.inf)
        assert made.vitals(0)["step"] == 3 and made.vitals(0)["steps"] == 9
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 1, 2]
    assert [row.get("loss") for row in rows] == [2.0, "nan", None, "inf"]
    assert [row.get("hit_rate") for row in rows] == [0.75, 0.75, None, 0.875]
    assert rows[0]["bubble_ratio"] == pytest.approx(0.6)
    assert rows[2] == {"step": 1, "validation/top1": 0.5}
    assert rows[0]["pending"] is None and rows[3]["pending"] == 3
    assert rows[3]["host"] == os.uname().nodename and abs(rows[3]["time"] - time.time()) < 60
    assert 1 << 20 < rows[3]["resident_bytes"] < 1 << 40
    beat = read_heartbeat(tmp_path / "run")
    assert (beat["step"], beat["loss"], beat["pending"]) == (3, None, 3)
    assert rows[3]["time"] - 60 < beat["last_step_time"] <= beat["time"]
    assert metrics_server._GAUGES.keys() <= beat.keys()


def test_a_life_that_begins_behind_a_step_of_passes(tmp_path):
    with recording(tmp_path / "run", passes="accumulate:2") as made:
        made.on_begin(0, [0])
        for y in range(5):
            made.on_loss(0, y, float(y))
        made.on_begin(1, [2])
        for y in (3, 2, 4):
            made.on_loss(0, y, y + 0.5)
    rows = read_metrics(tmp_path / "run/metrics.jsonl")
    assert [row["loss"] for row in rows] == [0.0, 1.0, 2.5, 3.5, 4.5]
    assert [(row["step"], row["pass"]) for row in rows] == [(y // 2, y % 2) for y in range(5)]


def test_everything_is_told_to_the_other_observer(tmp_path):
    told = []

    class Other(Observer):
        def __getattribute__(self, name):
            return lambda *found: told.append((name, *found))

    calls = [
        ("on_begin", 0, [0]), ("on_loss", 0, 0, 1.0), ("on_busy", 0, 1, 2), ("on_hits", 0, 1, 2),
        ("on_validation", 0, 0, {"loss": 1.0}), ("on_note", "text"),
    ]  # fmt: skip
    with recording(tmp_path / "run", Other()) as made:
        for name, *values in calls:
            getattr(made, name)(*values)
    assert told == calls


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("stages", [1, 2])
def test_a_full_disk_ends_the_run_with_one_line(tmp_path, stages, monkeypatch):
    monkeypatch.setattr(
        "naspipe.api.recording.MetricsFile", lambda _, first: MetricsFile(Path("/dev/full"), first)
    )
    with pytest.raises(StorageError) as caught:
        train(tmp_path / "run", Calm(spaces.vectors), stages=stages)
    text = str(caught.value)
    assert text.startswith("/dev/full cannot be written (") and "[Errno 28] No space left" in text
    assert "\n" not in text and "resume=True" in text
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["status"] == "failed" and "cannot be written" in manifest["failure"]


def test_a_disk_that_takes_a_part_of_a_line(tmp_path, monkeypatch):
    made = MetricsFile(tmp_path / "metrics.jsonl", 0)
    taken = []

    class Slow:
        def write(self, data):
            if len(taken) == 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            taken.append(bytes(data[:7]))
            return 7

    made.close()
    monkeypatch.setattr(made._lines, "_file", Slow())
    with pytest.raises(StorageError, match=r"metrics\.jsonl cannot be written"):
        made.write(0, {"loss": 1.0, "other": 3.5})
    assert b"".join(taken) == b'{"step": 0, "loss": 1.'[:21]


def test_without_tensorboard_nothing_is_begun(tmp_path, monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == "tensorboard":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(npp.ConfigError, match=r"pip install 'naspipe\[tensorboard\]'"):
        train(tmp_path / "run", Calm(spaces.vectors), execution={"tensorboard": True})
    assert not (tmp_path / "run").exists()

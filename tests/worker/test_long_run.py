"""A slice of scripts/check_long_run.py: once every layer was touched, nothing grows any more."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.store import access_log as log
from naspipe.wire.reports import Observer
from naspipe.worker.blocks.compute import StageCompute
from tests.equivalence import spaces

STEPS, WARM_UP, EVERY = 150, 60, 15


def counted():
    """Live tensors, the bytes of their storages, all objects, threads and open files."""
    gc.collect()
    objects = gc.get_objects()
    tensors = [each for each in objects if isinstance(each, torch.Tensor)]
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {
        "tensors": len(tensors),
        "bytes": sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()),
        "objects": len(objects),
        "threads": threading.active_count(),
        "files": len(list(Path("/proc/self/fd").iterdir())),
    }


class Counter(Observer):
    """Counts between steps of a run on one stage, which is in this process."""

    def __init__(self):
        self.rows = []

    def on_loss(self, stream, sequence_id, loss):
        if sequence_id >= WARM_UP and sequence_id % EVERY == 0:
            self.rows.append(counted())


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
    """So that few access records wait in memory, however long the run."""
    monkeypatch.setattr(log, "_BUFFERED", 256)


def grown(tmp_path, execution):
    counter = Counter()
    npp.train(
        spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=STEPS, seed=1, stages=1,
        optimizer_options={"momentum": 0.9}, sampler="fair", run_dir=tmp_path / "run",
        observer=counter, execution=execution,
    )  # fmt: skip
    assert len(counter.rows) == (STEPS - WARM_UP) // EVERY
    halves = counter.rows[:3], counter.rows[3:]
    low, high = ({key: max(row[key] for row in half) for key in half[0]} for half in halves)
    return {key: high[key] - low[key] for key in low}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to count open files")
@pytest.mark.parametrize(
    "execution",
    [{}, {"memory_budget": "1.5x", "recompute": True}],
    ids=["all resident", "1.5x, recompute"],
)
def test_nothing_grows(tmp_path, execution, computes_here):
    growth = grown(tmp_path, execution)
    # Access records wait in memory, 256 here; layers on the device come and go.
    assert growth["objects"] < 700, growth
    assert growth["tensors"] < 30, growth
    assert growth["bytes"] < 15_000, growth
    assert growth["threads"] == growth["files"] == 0, growth


def test_a_pass_that_is_not_forgotten_is_seen(tmp_path, monkeypatch, computes_here):
    monkeypatch.setattr(StageCompute, "retire", lambda compute, stream, sequence_id: None)
    growth = grown(tmp_path, {})
    assert growth["tensors"] > 60 and growth["bytes"] > 30_000, growth

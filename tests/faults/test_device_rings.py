"""A stage killed while others read its ring, on host memory in place of GPUs'."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from naspipe.api import training
from naspipe.wire import device_rings
from naspipe.wire.device_rings import DeviceRings
from tests.equivalence import spaces
from tests.faults.helpers import Calm, assert_identical, kill, train
from tests.faults.ring_points import before
from tests.wire.host_memory import HostMemory

SHARED = Path("/dev/shm")


class Once:
    """Kills the process in which it is called for the ninth time, and no other one after it."""

    def __init__(self, marker):
        self.marker, self.left = marker, 9

    def __call__(self):
        self.left -= 1
        if self.left == 0 and not self.marker.exists():
            self.marker.touch()
            kill()


def segments():
    """What has a name in shared memory; other tests have folders there."""
    return {each for each in SHARED.iterdir() if not each.is_dir()}


def children():
    """Processes whose parent this one is."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {word for task in tasks for word in task.read_text().split()}


@pytest.mark.parametrize("point", ["put", "take", "give_back"])
def test_a_killed_stage_leaves_nothing_behind(tmp_path, monkeypatch, point):
    names, there = segments(), children()
    whole = train(tmp_path / "whole", Calm(spaces.vectors))
    monkeypatch.setattr(training, "check_data_path", lambda *_: None)
    monkeypatch.setattr(device_rings, "MEMORY", HostMemory)
    monkeypatch.setattr(DeviceRings, point, getattr(DeviceRings, point))  # undone at the end
    before(DeviceRings, point, Once(tmp_path / "killed"))
    execution = {"data_path": "cuda_ipc", "checkpoint_every": 4, "max_restarts": 3}
    run = train(tmp_path / "run", Calm(spaces.vectors), stages=2, execution=execution)
    assert (tmp_path / "killed").exists()
    assert_identical(whole, run)
    assert segments() <= names and children() == there

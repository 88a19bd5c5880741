"""The stages of a run end with their launcher, also when it had no time to say so."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
from torch import nn

import naspipe
from tests.equivalence import spaces

_FORK = multiprocessing.get_context("fork")


def launch(path, sockets):
    """A launcher in a process of its own; what it says at its end is nobody's business."""
    tempfile.tempdir = sockets
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    naspipe.train(
        spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=4_000, stages=2, run_dir=path
    )


def launch_taught(path, sockets):
    """The same with teachers of its own."""
    tempfile.tempdir = sockets
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    naspipe.train(
        spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=4_000, stages=2, run_dir=path,
        teacher=naspipe.Teacher([nn.Linear(16, 10)]),
        execution={"labels": "service", "teachers": 2},
    )  # fmt: skip


def descendants(pid):
    return [each for child in children(pid) for each in (child, *descendants(child))]


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find children")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_stages_end_with_their_launcher(tmp_path, how):
    with tempfile.TemporaryDirectory(prefix="np") as sockets:
        launcher = _FORK.Process(target=launch, args=(tmp_path / "run", sockets))
        launcher.start()
        try:
            logs = tmp_path / "run" / "losses.jsonl"
            wait_until(lambda: logs.exists() and logs.stat().st_size > 0, 60)
            stages = children(launcher.pid)
            assert len(stages) == 2
            os.kill(launcher.pid, how)
            launcher.join(10)
            assert launcher.exitcode == (-how if how is signal.SIGKILL else 1)
            wait_until(lambda: not any(map(is_running, stages)), 10)
        finally:
            launcher.kill()
            launcher.join()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find children")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_teachers_end_with_their_launcher(tmp_path, how):
    """And leave no socket."""
    with tempfile.TemporaryDirectory(prefix="np") as sockets:
        launcher = _FORK.Process(target=launch_taught, args=(tmp_path / "run", sockets))
        launcher.start()
        try:
            logs = tmp_path / "run" / "losses.jsonl"
            wait_until(lambda: logs.exists() and logs.stat().st_size > 0, 60)
            found = descendants(launcher.pid)
            assert len(found) == 5  # two stages, the registry, two teachers
            os.kill(launcher.pid, how)
            launcher.join(10)
            wait_until(lambda: not any(map(is_running, found)), 10)
            places = list(Path(sockets).rglob("teacher-*"))
            assert not places
        finally:
            launcher.kill()
            launcher.join()

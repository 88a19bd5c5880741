"""A launcher that is killed, and a stage that was stopped and so did not notice."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time

import pytest

from naspipe.launch.claim import Claim, end_processes, record_processes
from naspipe.store.compare import compare_runs
from naspipe.worker import stage_main
from tests.faults.helpers import train
from tests.faults.small_space import batches
from tests.launch.test_launcher_death import is_running, wait_until

_FORK = multiprocessing.get_context("fork")


def life(path, resume=False):
    return train(path, batches, steps=60, stages=2, resume=resume)


def run_and_stop_a_stage(path):
    """A run of two stages, the first of them stopped, its launcher killed; the stages' numbers."""
    launcher = _FORK.Process(target=life, args=(path,))
    launcher.start()
    losses = path / "losses.jsonl"
    wait_until(lambda: losses.exists() and losses.read_bytes().count(b"\n") > 12, 60)
    pids = list(map(int, json.loads((path / ".processes.json").read_text())["started"]))
    os.kill(pids[0], signal.SIGSTOP)
    launcher.kill()
    launcher.join()
    wait_until(lambda: not is_running(pids[1]), 10)
    return pids


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not tell a stopped process")
def test_a_stopped_stage_wakes_and_ends_with_its_launcher(tmp_path):
    stopped, _ = run_and_stop_a_stage(tmp_path / "run")
    wait_until(lambda: not is_running(stopped), 10)


def test_a_stopped_stage_of_an_earlier_life_is_ended(tmp_path, monkeypatch):
    """One that nobody woke: some kernels do not, and a debugger holds a process, too."""
    monkeypatch.setattr(stage_main, "_wake_with_parents_end", lambda: None)
    path = tmp_path / "run"
    pids = run_and_stop_a_stage(path)
    assert is_running(pids[0]), "it cannot have noticed"
    before = (path / "access" / "stage-0.msgpack").read_bytes()
    found = life(path, resume=True)
    assert not is_running(pids[0])
    assert (path / "access" / "stage-0.msgpack").read_bytes() == before
    assert (path / "access" / "stage-0.gen-1.msgpack").exists()
    whole = train(tmp_path / "whole", batches, steps=60)
    assert compare_runs([whole.directory.path, found.directory.path])[0].is_identical


def test_only_the_recorded_process_is_ended(tmp_path):
    """The number may be another process's by now: it began at another time."""
    sleeper = _FORK.Process(target=time.sleep, args=(30,))
    sleeper.start()
    record_processes(tmp_path, [sleeper.pid])
    recorded = json.loads((tmp_path / ".processes.json").read_text())
    recorded["started"][str(sleeper.pid)] += 1
    (tmp_path / ".processes.json").write_text(json.dumps(recorded))
    assert end_processes(tmp_path) == [] and sleeper.is_alive()
    record_processes(tmp_path, [sleeper.pid])
    with Claim(tmp_path):
        sleeper.join(10)
    assert sleeper.exitcode == -signal.SIGKILL
    assert sorted(each.name for each in tmp_path.iterdir()) == [".lock"]

"""A run whose process is gone is never said to be running."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import time

import pytest

from naspipe.launch.claim import Claim
from naspipe.store.run_directory import (
    HEARTBEAT,
    LOCK,
    RunDirectory,
    ago,
    decide,
    is_held,
    read_heartbeat,
    run_state,
    write_heartbeat,
)

FORK = multiprocessing.get_context("fork")
MANIFEST = {"format": 1, "status": "running"}


@pytest.mark.parametrize(("written", "is_locked", "is_here", "silence", "status"), [
    ("running", True, True, 0, "running"),
    ("running", True, True, 900, "running"),  # stopped, perhaps: its process is there
    ("running", False, True, 0, "died"),
    ("planning", False, True, 0, "died"),
    ("planning", True, True, 0, "planning"),
    ("running", False, False, 5, "running"),  # on another host, whose locks are not seen here
    ("running", False, False, 60, "died"),
    ("complete", False, True, 900, "complete"),
    ("failed", False, False, 900, "failed"),
    ("interrupted", True, True, 0, "interrupted"),
])  # fmt: skip
def test_who_decides(written, is_locked, is_here, silence, status):
    assert decide(written, is_locked, is_here, silence) == status


def live(path, receiver):
    with Claim(path):
        write_heartbeat(path, {"step": 7, "steps": 9})
        receiver.send_bytes(b"ready")
        time.sleep(60)


@pytest.fixture
def other(tmp_path):
    """A run directory that another process holds, and the process."""
    directory = RunDirectory(tmp_path / "run")
    directory.create()
    directory.write_manifest(MANIFEST)
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=live, args=(directory.path, theirs))
    process.start()
    assert ours.poll(20)
    yield directory, process
    process.kill()
    process.join()


def test_a_launcher_that_is_killed(other):
    directory, process = other
    state = run_state(directory, MANIFEST)
    assert state.status == "running" and f"process {process.pid} on " in state.said
    assert "step 7 of 9" in state.said
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    state = run_state(directory, MANIFEST)
    assert state.status == "died" and "\n" not in state.said
    assert state.said.startswith("it ended without a word: its manifest says 'running', but no")
    assert f"on {os.uname().nodename}" in state.said


def test_a_launcher_that_is_stopped_is_there(other):
    directory, process = other
    os.kill(process.pid, signal.SIGSTOP)
    assert run_state(directory, MANIFEST).status == "running"


def test_to_ask_for_one_s_own_lock_does_not_let_go_of_it(tmp_path):
    directory = RunDirectory(tmp_path)
    with Claim(tmp_path):
        write_heartbeat(tmp_path, {})
        assert run_state(directory, MANIFEST).status == "running"
        asking = FORK.Process(target=lambda: os._exit(is_held(tmp_path / LOCK)))
        asking.start()
        asking.join()
        assert asking.exitcode == 1


def test_to_ask_takes_nothing(tmp_path):
    (tmp_path / LOCK).touch()
    assert not is_held(tmp_path / LOCK) and not is_held(tmp_path / "absent")
    with (tmp_path / LOCK).open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"time": "x"}', '{"time": 1, "host": 3}', "1e9"])
def test_a_heartbeat_that_is_none(tmp_path, text):
    (tmp_path / HEARTBEAT).write_text(text)
    assert read_heartbeat(tmp_path) == {}


def test_a_heartbeat_without_room_keeps_the_one_before(tmp_path):
    write_heartbeat(tmp_path, {"step": 1, "loss": float("nan")})
    found = read_heartbeat(tmp_path)
    assert (found["step"], found["loss"], found["pid"]) == (1, None, os.getpid())
    write_heartbeat(tmp_path / "absent", {"step": 2})
    assert read_heartbeat(tmp_path) == found


@pytest.mark.parametrize(("seconds", "said"), [(3, "3 s ago"), (119, "119 s ago"),
                         (180, "3 min ago"), (7200, "2 h ago"), (864000, "10 d ago")])  # fmt: skip
def test_ago(seconds, said):
    assert ago(seconds) == said

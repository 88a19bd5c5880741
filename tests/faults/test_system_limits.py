"""Streams that are closed or full, limits of the system, a terminal that goes, and leftovers."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from naspipe.cli.main import main
from naspipe.config.errors import RunInterruptedError
from naspipe.wire.endpoints import SOCKETS_PREFIX, private_directory, sweep
from tests.equivalence import spaces
from tests.faults.helpers import LAUNCHER, Calm, Ends, assert_identical, train
from tests.thinned import long

FORK = multiprocessing.get_context("fork")
SPACE = "tests.faults.small_space"
WORDS = ["train", f"{SPACE}:space", "--data", f"{SPACE}:batches", "--steps", "6"]


@pytest.fixture
def command(tmp_path):
    """Runs a command in a process of its own; returns its exit status, stdout and stderr."""

    def run(words, prepare):
        def call():
            for number, name in ((1, "out"), (2, "err")):
                file = os.open(tmp_path / name, os.O_CREAT | os.O_WRONLY)
                os.dup2(file, number)
            sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
            prepare()
            os._exit(main([str(word) for word in words]))

        process = FORK.Process(target=call)
        process.start()
        process.join(100)
        return process.exitcode, *((tmp_path / name).read_text() for name in ("out", "err"))

    return run


def full(number):
    os.dup2(os.open("/dev/full", os.O_WRONLY), number)


def close_stdout():
    sys.stdout.close()
    sys.stdout = None


def status(path):
    return json.loads((path / "manifest.json").read_bytes())["status"]


@pytest.mark.parametrize("prepare", [lambda: full(1), close_stdout], ids=["full", "closed"])
def test_a_finished_run_does_not_fail_for_stdout(command, tmp_path, prepare):
    found, out, err = command([*WORDS, "--quiet", "--run-dir", tmp_path / "run"], prepare)
    assert (found, out, status(tmp_path / "run")) == (0, "", "complete")
    said = err.splitlines()
    assert len(said) <= 1 and all("stdout cannot be written" in line for line in said)
    assert all(line.endswith(f"the work is done: {tmp_path}/run") for line in said)


@pytest.mark.parametrize("stages", [1, long(2)])
def test_progress_that_nobody_takes_ends_no_run(command, tmp_path, stages):
    words = [*WORDS, "--stages", stages, "--log-every", "0.01", "--run-dir", tmp_path / "run"]
    found, out, _ = command(words, lambda: full(2))
    assert (found, out) == (0, f"{tmp_path}/run\n") and status(tmp_path / "run") == "complete"


def test_other_results_that_stdout_does_not_take_are_one_line(command, tmp_path):
    (tmp_path / "runs").mkdir()
    found, out, err = command(["runs", tmp_path / "runs", "--json"], lambda: full(1))
    assert (found, out) == (1, "") and err.count("\n") == 1
    assert err.startswith("naspipe: stdout cannot be written: [Errno 28] No space left on device")


def few_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))


def no_space():
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (8 << 20), mapped + (8 << 20)))


@pytest.mark.parametrize(("prepare", "said"), [
    (few_files, "open files: expected a limit of 58 or more for 2 stages, found 24; raise it"),
    (no_space, "address space: expected a limit of "),
])  # fmt: skip
def test_limits_are_seen_before_anything_is_written(command, tmp_path, prepare, said):
    words = [*WORDS, "--quiet", "--stages", "2", "--run-dir", tmp_path / "run"]
    found, out, err = command(words, prepare)
    assert (found, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith(f"naspipe: {said}") and not (tmp_path / "run").exists()


def test_a_soft_limit_of_files_is_raised(command, tmp_path):
    def prepare():
        resource.setrlimit(resource.RLIMIT_NOFILE, (24, 4096))

    words = [*WORDS, "--quiet", "--stages", "2", "--run-dir", tmp_path / "run"]
    assert command(words, prepare) == (0, f"{tmp_path}/run\n", "")


def hang_up():
    os.kill(LAUNCHER, signal.SIGHUP)
    time.sleep(3.0)  # the launcher has to hear of it before the run ends


def hang_up_behind_sigterm():
    os.kill(LAUNCHER, signal.SIGTERM)
    hang_up()


def warned_twice():
    """As Slurm does with ``--signal``: all processes of a step, and more than once."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(LAUNCHER, number)
        if os.getpid() != LAUNCHER:
            os.kill(os.getpid(), number)
    time.sleep(3.0)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_warning_of_a_scheduler_leaves_a_checkpoint(tmp_path, stages):
    path = tmp_path / "run"
    with pytest.raises(RunInterruptedError, match=r"interrupted by SIGUSR[12], with a"):
        train(path, Ends(spaces.vectors, 9, warned_twice, tmp_path / "marker"), stages=stages)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    found = train(path, Calm(spaces.vectors), resume=True)
    assert_identical(train(tmp_path / "whole", Calm(spaces.vectors)), found)


def test_a_users_handler_of_a_warning_is_kept(tmp_path):
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        train(tmp_path / "run", Ends(spaces.vectors, 9, warned, tmp_path / "marker"), stages=1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1]


def warned():
    os.kill(LAUNCHER, signal.SIGUSR1)


@pytest.fixture
def heeds_hang_ups():
    """Also where the tests were started by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heeds_hang_ups")
@pytest.mark.parametrize(("stages", "how"), [(1, hang_up), (2, hang_up_behind_sigterm)])
def test_a_terminal_that_is_closed_leaves_a_checkpoint(tmp_path, stages, how):
    path = tmp_path / "run"
    with pytest.raises(
        RunInterruptedError, match=r"interrupted by SIG(HUP|TERM), with a"
    ) as caught:
        train(path, Ends(spaces.vectors, 9, how, tmp_path / "marker"), stages=stages)
    assert "\n" not in str(caught.value)
    found = train(path, Calm(spaces.vectors), resume=True)
    assert_identical(train(tmp_path / "whole", Calm(spaces.vectors)), found)


def hold(sender):
    with private_directory() as path:
        (path / "socket").touch()
        sender.send_bytes(str(path).encode())
        time.sleep(60)


def test_directories_of_the_dead_are_swept_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours, theirs = FORK.Pipe()
    processes = [FORK.Process(target=hold, args=(theirs,)) for _ in range(2)]
    (tmp_path / f"{SOCKETS_PREFIX}mine").mkdir()  # somebody else's
    paths = []
    for process in processes:
        process.start()
        assert ours.poll(20)
        paths.append(Path(ours.recv_bytes().decode()))
    processes[0].kill()
    processes[0].join()
    with private_directory() as own:
        assert not paths[0].exists() and paths[1].exists() and own.is_dir()
        assert sweep() == []
    processes[1].kill()
    processes[1].join()
    assert sweep() == [paths[1]]
    assert [path.name for path in tmp_path.iterdir()] == [f"{SOCKETS_PREFIX}mine"]

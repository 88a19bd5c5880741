"""A run whose stages are on several hosts, as torchrun's workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from naspipe.api import training, workers
from naspipe.api import workers as assignment
from naspipe.cli.main import main
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.launch.hosts import Worker
from naspipe.store.compare import compare_runs
from tests.cli.test_bad_input import free_ports
from tests.faults.two_hosts import TwoHosts, why_not
from tests.forked import Fork
from tests.launch.test_launcher_death import wait_until

STEPS = 40
SMALL = "tests.faults.small_space"
RUN = [
    "train", f"{SMALL}:space", "--data", f"{SMALL}:batches", "--steps", str(STEPS), "--seed", "3",
    "--set", "lr=0.02", "--checkpoint-every", "5", "--set", "window=4", "--quiet",
    "--set", "timeout_seconds=30", "--set", "silence_seconds=5",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    assert main([*RUN, "--run-dir", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def hosts():
    if reason := why_not():
        pytest.skip(reason)
    with TwoHosts() as made:
        yield made


class Workers:
    """The same command, once per worker; on hosts where some are given, else on loopback."""

    def __init__(self, stack, path, count, *, hosts=None, more=(), last=(), run=RUN):
        first = free_ports(2 * count + 1)
        self.port, self.path = first + 2 * count, path
        self.hosts, self.count, self.last = hosts, count, last
        self.words = [*run, "--run-dir", str(path), "--set", f"port={first}", *more]
        self.forks = [Fork(self._work, rank) for rank in range(count)]
        for fork in self.forks:
            stack.callback(fork.end)

    def _work(self, rank):
        if self.hosts:
            self.hosts.enter(min(rank, 1))
        os.environ |= {
            "RANK": str(rank), "WORLD_SIZE": str(self.count), "MASTER_PORT": str(self.port),
            "MASTER_ADDR": self.hosts.addresses[0] if self.hosts else "127.0.0.1",
        }  # fmt: skip
        is_last = rank == self.count - 1
        return main([*self.words, *(self.last if is_last else ())])

    def join(self, seconds=60):
        deadline = time.monotonic() + seconds
        return [fork.join(max(0.1, deadline - time.monotonic())) for fork in self.forks]

    def wait_for(self, lines):
        losses = self.path / "losses.jsonl"
        wait_until(lambda: losses.exists() and losses.read_bytes().count(b"\n") >= lines, 60)


def listening(pid, address):
    """The ports that somebody listens at on a process's host, every one on this address only."""
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    found = [row[1].split(":") for row in rows if row[3] == "0A"]
    here = socket.inet_aton(address)[::-1].hex().upper()
    assert {place for place, _ in found} == {here}
    return [int(port, 16) for _, port in found]


def assert_identical(whole, path):
    (comparison,) = compare_runs([whole, path])
    assert comparison.is_identical, str(comparison)


def test_two_hosts_have_one_hosts_bits_and_a_cut_one_ends_both(tmp_path, whole, hosts):
    """Cut off for longer than the time-out: both end, with the cause; the same command goes on."""
    path = tmp_path / "run"
    with ExitStack() as stack:
        first = Workers(stack, path, 2, hosts=hosts)
        first.wait_for(12)
        assert all(listening(fork.pid, hosts.addresses[n]) for n, fork in enumerate(first.forks))
        start = time.monotonic()
        hosts.cut()
        assert first.join(30) == [1, 1]
        assert time.monotonic() - start < 20
        assert "stage 1 failed" in first.forks[0].said
        assert "no sign of life from " in first.forks[0].said
        assert "the launcher (rank 0, tcp://" in first.forks[1].said
        assert "no sign of life from " in first.forks[1].said
        assert f"(rank 1, {hosts.addresses[1]}:" in first.forks[0].said
        for fork in first.forks:
            assert fork.said.endswith(f"; go on with: naspipe train --resume {path}\n")
        hosts.heal()
        assert Workers(stack, path, 2, hosts=hosts).join() == [0, 0]
    assert json.loads((path / "manifest.json").read_text())["life"]["generation"] == 1
    assert_identical(whole, path)


def test_the_first_steps_are_verified(tmp_path, whole):
    """Each host is told up to where its stages report what they write."""
    path = tmp_path / "run"
    with ExitStack() as stack:
        assert Workers(stack, path, 2, more=("--verify", "4")).join() == [0, 0]
    assert json.loads((path / "manifest.json").read_text())["verified"] == {"steps": 4}
    assert_identical(whole, path)


def test_with_fewer_hosts_after_one_is_lost(tmp_path, whole):
    path = tmp_path / "run"
    with ExitStack() as stack:
        first = Workers(stack, path, 3)
        first.wait_for(12)
        os.kill(first.forks[2].pid, signal.SIGKILL)
        start = time.monotonic()
        assert first.join(20) == [1, 1, -signal.SIGKILL]
        assert time.monotonic() - start < 10
        assert "the worker that watched it has ended" in first.forks[0].said
        assert f"on {os.uname().nodename} (rank 2, 127.0.0.1:" in first.forks[0].said
        assert first.forks[0].said.endswith(f"; go on with: naspipe train --resume {path}\n")
        second = Workers(stack, path, 2)
        assert second.join() == [0, 0], [fork.said for fork in second.forks]
    assert_identical(whole, path)


def test_who_shows_no_progress_says_where_it_is_and_that_it_is_done(tmp_path):
    with ExitStack() as stack:
        loud = [word for word in RUN if word != "--quiet"]
        both = Workers(stack, tmp_path / "run", 2, run=loud)
        assert both.join() == [0, 0]
        host, port = os.uname().nodename, both.words[both.words.index("--set", -2) + 1]
        assert "naspipe: " not in both.forks[0].said and f"{STEPS}/{STEPS}" in both.forks[0].said
        assert both.forks[1].said.splitlines() == [
            f"naspipe: rank 1 of 2 on {host} works for {host} (rank 0, 127.0.0.1:"
            f"{int(port.partition('=')[2]) + 1}); progress is shown there",
            f"naspipe: rank 1 of 2 on {host} is done: the run is complete",
        ]


def test_a_signal_anywhere_is_one_checkpoint(tmp_path, whole):
    path = tmp_path / "run"
    with ExitStack() as stack:
        first = Workers(stack, path, 2)
        first.wait_for(12)
        os.kill(first.forks[1].pid, signal.SIGTERM)
        assert first.join(20) == [143, 143]
        assert "interrupted by SIGTERM, with a checkpoint at subnet" in first.forks[0].said
        assert "rank 0 ended the run: interrupted by SIGTERM" in first.forks[1].said
        again = Workers(stack, path, 1)
        assert again.join() == [0], again.forks[0].said
    assert_identical(whole, path)


class SlowPlans(Workers):
    """Rank 0 has a directory, and plans for long."""

    def _work(self, rank):
        if rank == 0:
            training.make_plan = lambda *given: time.sleep(60)
        return super()._work(rank)


def test_a_signal_while_rank_0_plans_ends_all_at_once(tmp_path):
    path = tmp_path / "run"
    with ExitStack() as stack:
        both = SlowPlans(stack, path, 2)
        wait_until((path / "manifest.json").exists, 60)
        os.kill(both.forks[0].pid, signal.SIGTERM)
        assert both.join(15) == [143, 143]
        for fork in both.forks:
            assert "interrupted by SIGTERM before the training began" in fork.said
    assert not path.exists()


def test_other_definitions_end_with_one_line(tmp_path):
    with ExitStack() as stack:
        both = Workers(stack, tmp_path / "run", 2, last=("--seed", "4"))
        assert both.join(30) == [2, 1]
        expected = (
            f"rank 1 on {os.uname().nodename} and rank 0 on {os.uname().nodename} differ: "
            f"definition.seed is 3 on rank 0, 4 on rank 1; every host needs the same"
        )
        assert both.forks[0].said.startswith(f"naspipe: {expected}")
        assert both.forks[0].said.count("\n") == 1 == both.forks[1].said.count("\n")
        assert expected in both.forks[1].said


def test_one_that_cannot_take_part_ends_all(tmp_path):
    with ExitStack() as stack:
        both = Workers(stack, tmp_path / "run", 2, last=("--stages", "4"))
        assert both.join(30) == [2, 2]
        for fork in both.forks:
            assert "--stages 4: expected one stage for each of torchrun's workers, found 2" in (
                fork.said
            )
    assert not (tmp_path / "run").exists()


def worker(**changes):
    made = Worker(
        rank=1, world_size=2, local_rank=0, address="127.0.0.1", port=1, hosts_store=False
    )
    return replace(made, **changes)


@pytest.mark.parametrize(("settings", "said"), [
    ({"max_restarts": 2}, "torchrun --max-restarts 2"),
    ({"data_path": "nccl"}, "data_path=zmq"),
])  # fmt: skip
def test_what_torchrun_decides_is_not_asked_of_naspipe(settings, said):
    with pytest.raises(ConfigError, match=said):
        workers.execution_of(worker(), Execution(**settings), None)


def test_a_run_directory_that_is_not_shared(tmp_path):
    (tmp_path / assignment.LAUNCH_FILE).write_text('{"token": "of another run"}')
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match=r"rank 1: .* file system that all hosts share"):
            assignment.check_shared(1, path, "token")


@pytest.mark.parametrize(("environment", "said"), [
    ({"RANK": "2"}, "expected RANK below WORLD_SIZE, found 2 of 2"),
    ({"WORLD_SIZE": "two"}, "expected whole numbers in RANK, WORLD_SIZE"),
])  # fmt: skip
def test_an_environment_that_is_none_of_torchruns(environment, said):
    given = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    assert Worker.of({}) is None and not Worker.of(given).is_torchruns
    assert Worker.of(given | {"TORCHELASTIC_RUN_ID": "one"}).is_torchruns
    with pytest.raises(ConfigError, match=said):
        Worker.of(given | environment)

"""``naspipe distill`` as torchrun's workers: the same bits, and one line for what cannot be."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from naspipe.cli.main import main
from naspipe.store.compare import compare_runs
from naspipe.store.run_directory import RunDirectory
from tests.cli.test_bad_input import free_ports
from tests.forked import Fork
from tests.launch.test_launcher_death import wait_until

STEPS, BLOCKS = 30, 6
SLOW = "tests.cli.slow_digits:batches"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    path = tmp_path_factory.mktemp("teacher") / "run"
    words = ["train", "vgg8", "--data", "digits", "--set", "data.batch_size=8", "--steps", "6"]
    assert main([*words, "--quiet", "--run-dir", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory, teacher):
    path = tmp_path_factory.mktemp("whole") / "run"
    assert main(distill(teacher, path)) == 0
    return path


def distill(teacher, path, *more):
    return [
        "distill", str(teacher), "separable", "--steps", str(STEPS), "--seed", "3", "--quiet",
        "--data", SLOW, "--checkpoint-every", "5", "--set", "timeout_seconds=30",
        "--run-dir", str(path), *more,
    ]  # fmt: skip


class Workers:
    """The same command, once per worker, on loopback."""

    def __init__(self, stack, words, count, last=()):
        first = free_ports(2 * count + 1)
        self.started = []
        for rank in range(count):
            own = last if rank == count - 1 else ()
            command = [*words, "--set", f"port={first}", *own]
            named = {
                "RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": first + 2 * count,
            }  # fmt: skip
            environment = {key: str(each) for key, each in named.items()}
            self.started.append(stack.enter_context(Fork(self._work, command, environment)))

    @staticmethod
    def _work(command, environment):
        os.environ |= environment
        return main(command)

    def join(self, seconds=90):
        deadline = time.monotonic() + seconds
        ends = [each.join(max(0.1, deadline - time.monotonic())) for each in self.started]
        return ends, [each.said for each in self.started]


def assert_identical(whole: Path, path: Path) -> None:
    for number in range(BLOCKS):
        (found,) = compare_runs([whole / f"block-{number}", path / f"block-{number}"])
        assert found.is_identical, str(found)


def test_the_bits_of_one_process(tmp_path, teacher, whole):
    path = tmp_path / "run"
    with ExitStack() as stack:
        ends, said = Workers(stack, distill(teacher, path, "--set", "partition=free"), 2).join()
        assert ends == [0, 0], said
    assert_identical(whole, path)
    execution = RunDirectory(path / "block-0").read_manifest()["execution"]
    assert (execution["stages"], execution["transport"]) == (2, "tcp")


@pytest.mark.long
def test_a_signal_and_a_resume_with_another_number_of_workers(tmp_path, teacher, whole):
    path = tmp_path / "run"
    with ExitStack() as stack:
        first = Workers(stack, distill(teacher, path), 3)
        losses = path / "block-0" / "losses.jsonl"
        wait_until(lambda: losses.exists() and losses.read_bytes().count(b"\n") >= 8, 60)
        os.kill(first.started[2].pid, signal.SIGTERM)
        ends, said = first.join(40)
        assert ends == [143, 143, 143], said
        assert f"go on with: naspipe distill --resume {path}" in said[0]
        resumed = ["distill", "--resume", str(path), "--quiet"]
        ends, said = Workers(stack, resumed, 2).join()
        assert ends == [0, 0], said
    assert_identical(whole, path)


@pytest.mark.parametrize(
    ("last", "ends", "text"),
    [
        (["--stages", "4"], [2, 2], "--stages 4: expected one stage for each of torchrun's"),
        (["--seed", "4"], [2, 1], "differ: definition.0.seed is 3 on rank 0, 4 on rank 1"),
    ],
)  # fmt: skip
def test_other_commands_end_with_one_line(tmp_path, teacher, last, ends, text):
    path = tmp_path / "run"
    with ExitStack() as stack:
        found, said = Workers(stack, distill(teacher, path), 2, last=last).join(40)
    assert found == ends, said
    assert all(text in each and each.count("\n") == 1 for each in said), said
    assert path.exists() == (ends == [2, 1])


@pytest.mark.long
def test_a_run_directory_is_named(tmp_path, teacher):
    words = distill(teacher, tmp_path)
    place = words.index("--run-dir")
    with ExitStack() as stack:
        ends, said = Workers(stack, [*words[:place], *words[place + 2 :]], 2).join(40)
    assert ends == [2, 2] and "--run-dir: expected a directory" in said[0], said

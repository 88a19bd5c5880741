"""What the fast tier leaves out, what it forbids, and who gets the machine for himself."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest

from naspipe.worker import stage_main
from tests.launching import LAUNCHING
from tests.tiers import TESTS, Alone, launches

SECONDS = 20.0
"""Deadline of every wait."""


@pytest.mark.parametrize(
    ("test", "pattern", "expected"),
    [
        ("equivalence/test_a.py::test_x", "equivalence/", True),
        ("cli/test_a.py::test_x[1]", "cli/test_a.py", True),
        ("cli/test_ab.py::test_x", "cli/test_a", False),
        ("cli/test_a.py::test_x[1]", "cli/test_a.py::test_x", True),
        ("cli/test_a.py::test_x[1]", "cli/test_a.py::test_x[1]", True),
        ("cli/test_a.py::test_x[2]", "cli/test_a.py::test_x[1]", False),
        ("cli/test_a.py::test_xy", "cli/test_a.py::test_x", False),
        ("worker/test_a.py::test_x", "worker/*test_a.py", True),
        ("worker/blocks/test_a.py::test_x", "worker/*test_a.py::test_x", True),
        ("worker/blocks/my_test_a.py::test_x", "worker/*test_a.py", False),
    ],
)
def test_patterns(test, pattern, expected):
    assert launches(test, [pattern]) is expected


@pytest.mark.parametrize("pattern", LAUNCHING)
def test_what_is_named_is_there(pattern):
    path, _, function = pattern.partition("::")
    found = list(TESTS.glob(path.replace("*", "**/")))
    assert found, "rename it here, too"
    name = function.partition("[")[0]
    assert not name or any(f"def {name}(" in file.read_text() for file in found)


def test_this_test_may_start_nothing():
    for start in (
        lambda: subprocess.run(["true"]), lambda: os.system("true"),
        lambda: os.posix_spawn("/bin/true", ["true"], {}),
    ):  # fmt: skip
        with pytest.raises(pytest.fail.Exception, match=r"starts a process .*launching\.py"):
            start()
    with pytest.raises(pytest.fail.Exception, match="trains: name it"):
        stage_main._run_stage()
    subprocess.run(["git", "--version"], check=True, stdout=subprocess.DEVNULL)


class Item:
    """As much of a test as the hook looks at."""

    def __init__(self, *marks):
        self.marks = marks

    def get_closest_marker(self, name):
        return name if name in self.marks else None


class Worker:
    """Runs one test, from the time that it may begin to that when it is told to end."""

    def __init__(self, *marks):
        self.began, self.ends = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, args=(Item(*marks),))
        self.thread.start()

    def _run(self, item):
        protocol = Alone().pytest_runtest_protocol(item)
        next(protocol)
        self.began.set()
        assert self.ends.wait(SECONDS)
        with pytest.raises(StopIteration):
            protocol.send(None)

    def end(self):
        self.ends.set()
        self.thread.join(SECONDS)


def test_one_who_is_alone_waits_for_the_others_and_they_for_him(monkeypatch, tmp_path):
    for name in ("_DOOR", "_ROOM"):
        (tmp_path / name).touch()
        monkeypatch.setattr(f"tests.tiers.{name}", tmp_path / name)
    first, second = Worker(), Worker()
    assert first.began.wait(SECONDS) and second.began.wait(SECONDS)
    alone = Worker("alone")
    assert not alone.began.wait(0.2)
    late = Worker()
    first.end()
    assert not alone.began.wait(0.2) and not late.began.is_set()
    second.end()
    assert alone.began.wait(SECONDS) and not late.began.wait(0.2)
    alone.end()
    assert late.began.wait(SECONDS)
    late.end()

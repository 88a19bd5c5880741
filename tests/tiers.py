"""The fast tier, which launches nothing; and tests that need the machine for themselves."""

from __future__ import annotations

import fcntl
import importlib
import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from naspipe.worker import stage_main
from tests import stand_in
from tests.launching import LAUNCHING

TESTS = Path(__file__).parent
READS_ONLY = ("git",)
"""Programs that any test may start: they list the files."""

_STARTS = ("os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen")
_DOOR, _ROOM = Path(__file__), Path(__file__).with_name("conftest.py")
"""Files to hold locks on; nothing is written to them."""


def launches(test: str, patterns: Iterable[str] = LAUNCHING) -> bool:
    """Whether a test, by its path in this folder and its name, is among those named."""
    return any(_matches(test, pattern) for pattern in patterns)


def _matches(test: str, pattern: str) -> bool:
    before, star, after = pattern.partition("*")
    if not test.startswith(before):
        return False
    rest = test[len(before) :]
    if star:
        folders, found, rest = rest.partition(after)
        if not found or (folders and not folders.endswith("/")):
            return False
    return pattern.endswith("/") or rest[:1] in ("", "[", ":")


class Launches:
    """Marks the tests that launch, and fails one that does without being named."""

    def __init__(self) -> None:
        self._is_forbidden = False
        self._run_stage = stage_main._run_stage
        stage_main._run_stage = self._train
        sys.addaudithook(self._look)

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """The fast tier does not even import files of which it runs nothing."""
        is_fast = config.getoption("markexpr") == "not launches"
        if is_fast and collection_path.is_relative_to(TESTS):
            path = collection_path.relative_to(TESTS).as_posix()
            if path.endswith(".py") and launches(path):
                return True
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Before tests are chosen by their marks. Long files first: none is left to one worker."""
        long = set()
        for item in items:
            path = item.path.relative_to(TESTS).as_posix()
            if launches(f"{path}::{item.nodeid.partition('::')[2]}"):
                item.add_marker("launches")
                long.add(item.path)
        items.sort(key=lambda item: item.path not in long)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Look while a test and its fixtures run."""
        may_launch = item.get_closest_marker("launches") is not None or stand_in.is_wanted()
        self._is_forbidden = not may_launch
        if may_launch:
            # What torch imports for deterministic kernels takes a second and more: once here,
            # instead of in every stage that is forked.
            importlib.import_module("torch._inductor.config")
        try:
            return (yield)
        finally:
            self._is_forbidden = False

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_forbidden and event in _STARTS:
            program = Path(os.fsdecode(arguments[0])).name if arguments else ""
            if program not in READS_ONLY:
                self._refuse(f"starts a process ({program or event})")

    def _train(self, *arguments: Any) -> None:
        if self._is_forbidden:
            self._refuse("trains")
        self._run_stage(*arguments)

    def _refuse(self, what: str) -> None:
        pytest.fail(f"this test {what}: name it in tests/launching.py")


class Alone:
    """Of several workers, only one runs while it runs a test that is marked ``alone``.

    Everybody goes through the door before entering the room, and who wants it for himself waits
    in the door; so he is not kept waiting by those who come and go.
    """

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Hold the room from a test's first fixture to its last."""
        is_alone = item.get_closest_marker("alone") is not None
        with _DOOR.open() as door, _ROOM.open() as room:
            with _held(door.fileno(), fcntl.LOCK_EX):
                fcntl.flock(room, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
            try:
                return (yield)
            finally:
                fcntl.flock(room, fcntl.LOCK_UN)  # what was forked meanwhile has the file, too


@contextmanager
def _held(fd: int, how: int) -> Generator[None, Any, Any]:
    fcntl.flock(fd, how)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)

"""Tests beside an accelerator that is not there, which watch what launchers do.

NASPIPE_STAND_IN=always shows torch the stand-in of :mod:`tests.accelerator` before any test. Then a
test fails in which the frontend or a command computes in the launcher's own process, or asks for
the accelerator: on a machine with a GPU that spoils its forks. ./run_tests.sh has a part that runs
so. Any test may start processes there, since what computes is forked.

Tests may compute: a first backward before the stand-in is shown starts no thread for it. Those that
look inside a run on one stage hide the stand-in from naspipe (the fixture ``computes_here``).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import naspipe
from tests import accelerator

SETTING = "NASPIPE_STAND_IN"
_PACKAGE = Path(naspipe.__file__).parent
LAUNCHERS = tuple(f"{_PACKAGE / package}{os.sep}" for package in ("api", "inputs", "checks", "cli"))
"""Where what runs in a launcher begins."""


def is_wanted() -> bool:
    """Whether this process is to run beside the stand-in."""
    return os.environ.get(SETTING, "") == "always"


def launcher_of(frame: FrameType | None) -> str:
    """The innermost line of a launcher that led here; empty where none did."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(LAUNCHERS):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class Watcher:
    """Fails the tests in which a launcher computes or asks."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._found: list[str] = []
        accelerator.back()
        accelerator.show(lambda: self._look("asks for the accelerator"))
        engine = torch.autograd._engine_run_backward

        def run_backward(*arguments: Any, **options: Any) -> Any:
            self._look("computes a backward")
            return engine(*arguments, **options)

        torch.autograd._engine_run_backward = run_backward

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Look while a test runs, and its fixtures before it."""
        found = yield
        if self._found:
            said = "\n".join(self._found)
            self._found.clear()
            pytest.fail(f"beside an accelerator a launcher does what spoils its forks:\n{said}")
        return found

    def _look(self, what: str) -> None:
        if torch.accelerator.current_accelerator() is None:
            return  # hidden by the fixture computes_here
        if os.getpid() == self._process and (where := launcher_of(sys._getframe())):
            stack = "".join(traceback.format_stack(limit=12))
            self._found.append(f"{where} {what}\n{stack}")

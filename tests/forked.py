"""Commands and functions in forks: as a process of their own, but torch is imported already."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any, Self

import torch

_FORK = multiprocessing.get_context("fork")


class Fork:
    """A forked process that calls a function; ``said`` is what it wrote on stderr.

    As a context manager it leaves no process behind.
    """

    def __init__(self, function: Callable[..., int | None], *arguments: Any) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = _FORK.Process(target=self._run, args=(function, arguments))
        self._process.start()
        self.pid = self._process.pid

    def _run(self, function: Callable[..., int | None], arguments: tuple[Any, ...]) -> None:
        os.dup2(self._errors.fileno(), 2)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        torch.set_num_threads(1)  # those of the process that was forked are not here
        os._exit(function(*arguments) or 0)

    def join(self, seconds: float) -> int | None:
        """The exit status; None when it is still there."""
        self._process.join(seconds)
        return self._process.exitcode

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")

    def end(self) -> None:
        """Leave no process behind."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

"""How the preparation of a data set tells a person what it is doing."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)


class SilentProgress:
    """Says nothing."""

    def phase(self, text: str, total: int | None = None) -> None:
        """Ignore it."""

    def advance(self, steps: int = 1) -> None:
        """Ignore it."""


class ConsoleProgress:
    """One line per phase on standard error; a context manager that owns the display.

    Nothing is shown before the first phase.
    """

    def __init__(self) -> None:
        # The file is fixed now: a library that is silenced by redirecting stderr must not take
        # this display with it.
        self._progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._open: TaskID | None = None

    def __enter__(self) -> ConsoleProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._finish()
        if self._progress.live.is_started:
            self._progress.stop()

    def phase(self, text: str, total: int | None = None) -> None:
        """End the open phase and begin another."""
        self._finish()
        self._progress.start()
        self._open = self._progress.add_task(text, total=total)

    def advance(self, steps: int = 1) -> None:
        """Count ``steps`` more of the open phase."""
        if self._open is not None:
            self._progress.advance(self._open, steps)

    def _finish(self) -> None:
        if self._open is None:
            return
        task = next(task for task in self._progress.tasks if task.id == self._open)
        total = task.total if task.total is not None else max(task.completed, 1)
        self._progress.update(self._open, total=total, completed=total)
        self._open = None

"""How work on stages is shown while it goes: a bar, or a line now and then in a log.

The bar is for terminals and for notebooks with ipywidgets; other notebooks show lines.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Self, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from naspipe.frontend.display.lasting_stream import LastingStream


class Bar:
    """Counts to a total, on stderr; a context manager.

    It appears with the first call of :meth:`show`: input that is refused leaves no trace of it.

    Args:
        title: of the work.
        total: to count to.
        is_quiet: show nothing.
        every_seconds: from one line to the next, where there is no terminal.
    """

    def __init__(self, title: str, total: int, is_quiet: bool, every_seconds: float) -> None:
        self._console = Console(file=cast(TextIO, LastingStream()), quiet=is_quiet, highlight=False)
        has_widgets = self._console.is_jupyter and find_spec("ipywidgets") is not None
        self._is_live = self._console.is_terminal or has_widgets
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=is_quiet or not self._is_live,
        )
        self._task = self._progress.add_task(title, total=total, numbers="")
        self._title, self._total = title, total
        self._every_seconds = every_seconds
        self._printed = time.monotonic()
        self._busy: dict[int, float] = {}
        self.is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.is_shown:
            self._progress.stop()

    def show(self) -> None:
        """Start the bar; later calls do nothing."""
        if not self.is_shown:
            self.is_shown = True
            self._progress.start()

    def begin(self, done: int) -> None:
        """So much was done before."""
        self._printed = time.monotonic()
        self._busy = {}
        self._progress.reset(self._task, completed=done, numbers="")

    def update(self, done: int, numbers: str, left: str = "") -> None:
        """So much is done, with these numbers; ``left`` is what only a line has to say."""
        self._progress.update(self._task, completed=done, numbers=numbers)
        now = time.monotonic()
        is_due = now - self._printed > self._every_seconds or done == self._total
        if is_due and not self._is_live:
            self._printed = now
            self.say(
                "  ".join(filter(None, [f"{self._title}  {done}/{self._total}", numbers, left]))
            )

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """A stage's share of time spent computing."""
        self._busy[stage] = busy_ns / max(1, elapsed_ns)

    @property
    def busy(self) -> float | None:
        """That share, the mean of the stages that told theirs since the work began."""
        return sum(self._busy.values()) / len(self._busy) if self._busy else None

    def note(self, text: str) -> None:
        """A line that is about the work."""
        self.say(f"{self._title}  {text}")

    def say(self, text: str) -> None:
        """A line as it is."""
        self._console.print(text, markup=False, soft_wrap=True)

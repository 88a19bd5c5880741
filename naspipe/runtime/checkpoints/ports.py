"""What a checkpoint relies on, and who reads it.

Implementations: :class:`Log` is :class:`naspipe.trace.access.log.AccessLogWriter`;
:class:`CheckpointReader` is ``ValidationLauncher`` of
:mod:`naspipe.runtime.processes.validation_launcher`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Log(Protocol):
    """A log that a checkpoint relies on."""

    def flush(self) -> None:
        """Hand every record to the operating system."""
        ...

    def fileno(self) -> int:
        """The open file, to put it on disk."""
        ...


class CheckpointReader(Protocol):
    """Somebody who reads the checkpoints of a run that goes on."""

    def published(self, stream: int, cut: int) -> None:
        """There is one at this cut."""
        ...

    def needed(self, stream: int) -> Collection[int]:
        """Of which cuts the checkpoints still have to be read."""
        ...

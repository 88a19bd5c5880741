"""The small protocols through which behaviour plugs into the controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from naspipe.core.ids import SequenceId, Version
from naspipe.core.rules import Rule
from naspipe.core.task import Task


class SyncPolicy(Protocol):
    """Which version of a layer a subnet reads: the synchronisation policy of a run."""

    def version_to_read(self, rule: Rule, users: Sequence[Version], reader: SequenceId) -> Version:
        """The version ``reader`` asks for.

        ``users`` holds, in rising order, the sequence IDs of the layer's earlier users,
        from the oldest that any later reader can ask for; INITIAL stands for "none yet".
        """
        ...

    def is_writer(self, rule: Rule) -> bool:
        """Whether the users of a layer with this rule WRITE it."""
        ...


class DispatchOrder(Protocol):
    """Which of several clear tasks a stage runs first; a matter of time, never of results."""

    @property
    def max_run(self) -> int | None:
        """Blocks to run before the stage chooses anew; None for as many as are clear."""
        ...

    def key(self, task: Task, priority: int) -> tuple[Any, ...]:
        """A complete sort key: no two tasks of a stage share it; the least runs first.

        ``priority`` is that of the task's next block, from the subnet's admission.
        """
        ...

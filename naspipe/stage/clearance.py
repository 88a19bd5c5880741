"""When the blocks of a forward may run: their versions exist, and earlier passes are through.

The passes of a step read one version of a layer side by side. What a forward leaves behind (batch
normalisation's statistics) must not depend on who came first, so a later pass goes through such a
layer after the earlier one; through others they go as they come. A block may also wait for an input
of its own: a tap, a field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from naspipe.config.ids import LayerId, SequenceId, StreamId, Version
from naspipe.config.rules import Exact
from naspipe.config.wiring import InputName
from naspipe.core.ports import SyncPolicy
from naspipe.core.task import Task
from naspipe.schedule.versions import Ticket, VersionBook
from naspipe.stage.work import Progress, Work

_Written = tuple[LayerId, Version]
_Passed = tuple[StreamId, SequenceId, int]
"""The forward of a subnet through a block."""
_Input = tuple[Task, InputName]
"""What a block waits for beside the chain."""


class Clearance:
    """Follows what the forwards under way on a stage wait for.

    Args:
        book: the versions of this stage.
        policy: which of them are read, and how passes form steps.
        has_buffers: whether forwards through a layer leave something for the next one.
    """

    def __init__(
        self, book: VersionBook, policy: SyncPolicy, has_buffers: Callable[[LayerId], bool]
    ) -> None:
        self._book = book
        self._steps = policy.steps
        self._has_buffers = has_buffers
        self._waiting: dict[_Written | _Passed | _Input, list[tuple[Work, int]]] = {}
        self._open: Counter[tuple[Task, int]] = Counter()
        """How many things a block waits for."""

    def admit(self, progress: Progress) -> None:
        """Note what each block of a forward waits for; a step's passes come together, in order."""
        work, stream = progress.forward, progress.subnet.stream
        for block, ticket in progress.tickets.items():
            if not self._book.is_clear(ticket):
                self._await_read(work, block, (ticket.layer, ticket.reads))
            if self._steps.passes > 1:
                for before in self._before(ticket, work.task.sequence_id):
                    self._await_read(work, block, (stream, before, block))

    def written(self, layer: LayerId, version: Version) -> Iterator[Work]:
        """A version exists here now; returns the forwards that it may make ready."""
        return self._wake_readers((layer, version))

    def passed(self, stream: StreamId, sequence_id: int, block: int) -> Iterator[Work]:
        """A forward is through a block; returns the forwards that it may make ready."""
        return self._wake_readers((stream, SequenceId(sequence_id), block))

    def _before(self, ticket: Ticket, sequence_id: SequenceId) -> set[SequenceId]:
        """The passes of the same step whose forward through this block comes first."""
        layer, base = ticket.layer, ticket.base
        if base < self._steps.first(sequence_id) or not self._has_buffers(layer):
            return set()
        return {SequenceId(base)} if isinstance(self._book.rule(layer), Exact) else set()

    def await_input(self, work: Work, block: int, name: InputName) -> None:
        """A block of a forward needs an input that is not here yet."""
        work.missing.add(name)
        self._wait(work, block, (work.task, name))

    def arrived(self, task: Task, name: InputName) -> Iterator[Work]:
        """An input is here; returns the forward, for each of its blocks that became clear."""
        return (work for work, is_clear in self._arrive((task, name)) if is_clear)

    def _await_read(self, work: Work, block: int, what: _Written | _Passed) -> None:
        work.num_unread += 1
        self._wait(work, block, what)

    def _wake_readers(self, what: _Written | _Passed) -> Iterator[Work]:
        for work, is_clear in self._arrive(what):
            work.num_unread -= 1
            if is_clear or not work.num_unread:
                yield work

    def _wait(self, work: Work, block: int, what: _Written | _Passed | _Input) -> None:
        work.unclear.add(block)
        self._open[work.task, block] += 1
        self._waiting.setdefault(what, []).append((work, block))

    def _arrive(self, what: _Written | _Passed | _Input) -> Iterator[tuple[Work, bool]]:
        """Something is there: each forward that waited for it, and whether a block became clear."""
        for work, block in self._waiting.pop(what, ()):
            self._open[work.task, block] -= 1
            is_clear = not self._open[work.task, block]
            if is_clear:
                del self._open[work.task, block]
                work.unclear.discard(block)
            yield work, is_clear

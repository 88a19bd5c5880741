"""What tasks wait for (versions, passes, named inputs), and outputs tapped for other streams.

``Clearance`` tracks what each forward on a stage still waits for. ``Taps`` decides when the output
of a block is sent to another stream, and how long both subnets stay under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from naspipe.config.errors import InvariantError
from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId, Version
from naspipe.config.rules import Exact
from naspipe.config.steps import Steps
from naspipe.config.wiring import CHAIN, CREDIT, InputName, Wiring, field_input
from naspipe.engine.commands import RequestField, SendOutput
from naspipe.engine.events import Task
from naspipe.engine.policies import SyncPolicy
from naspipe.engine.versions import Ticket, VersionBook
from naspipe.engine.work import Progress, Work

_Written = tuple[LayerId, Version]
_Passed = tuple[StreamId, SequenceId, int]
_Input = tuple[Task, InputName]


class Clearance:
    """Tracks what the forwards under way on a stage wait for.

    A block needs the version of its layer, in some steps an earlier pass, and inputs: the chain's,
    tapped outputs, late fields.
    """

    def __init__(
        self,
        book: VersionBook,
        policy: SyncPolicy,
        has_buffers: Callable[[LayerId], bool],
        wiring: Wiring,
        taps: Taps,
    ) -> None:
        self._book = book
        self._steps = policy.steps
        self._has_buffers = has_buffers
        self._wiring = wiring
        self._taps = taps
        self._waiting: dict[_Written | _Passed | _Input, list[tuple[Work, int]]] = {}
        self._open: Counter[tuple[Task, int]] = Counter()

    def admit(self, progress: Progress) -> None:
        """Record which versions and passes each block of a forward waits for.

        The passes of a step are admitted together, in order.
        """
        work, stream = progress.forward, progress.subnet.stream
        for block, ticket in progress.tickets.items():
            if not self._book.is_clear(ticket):
                self._await_read(work, block, (ticket.layer, ticket.reads))
            if self._steps.passes > 1:
                for before in self._before(ticket, work.task.sequence_id):
                    self._await_read(work, block, (stream, before, block))

    def admit_inputs(self, progress: Progress, blocks: range) -> list[RequestField]:
        """Record which inputs a forward's blocks wait for; returns the requests for late fields."""
        forward = progress.forward
        for block, name in self._taps.awaited(forward.task, blocks):
            self.await_input(forward, block, name)
        asked = []
        for block, field in self._wiring.of(progress.subnet.stream).late_fields:
            if block in blocks:
                name = field_input(field)
                if name not in forward.missing:
                    asked.append(RequestField(forward.task, field))
                self.await_input(forward, block, name)
        return asked

    def arrive_input(self, progress: Progress, task: Task, name: InputName) -> Iterable[Work]:
        """Process an input; returns the tasks that it may make ready. A credit makes none ready."""
        if name.startswith(CREDIT):
            return ()
        work = progress.work(task)
        if work is None or name not in work.missing:
            there = "no such task" if work is None else ", ".join(sorted(work.missing)) or "nothing"
            raise InvariantError(f"{task}: its input {name} arrived, expected {there}")
        work.missing.remove(name)
        if name == CHAIN:
            return (work,)
        return (each for each, is_clear in self._arrive((task, name)) if is_clear)

    def written(self, layer: LayerId, version: Version) -> Iterator[Work]:
        """Process a version that now exists here; returns the forwards that it may make ready."""
        return self._wake_readers((layer, version))

    def passed(self, stream: StreamId, sequence_id: int, block: int) -> Iterator[Work]:
        """Process the end of a block's forward; returns the forwards that it may make ready."""
        return self._wake_readers((stream, SequenceId(sequence_id), block))

    def _before(self, ticket: Ticket, sequence_id: SequenceId) -> set[SequenceId]:
        """Return the passes of the same step that must run this block's forward first."""
        layer, base = ticket.layer, ticket.base
        if base < self._steps.first(sequence_id) or not self._has_buffers(layer):
            return set()
        return {SequenceId(base)} if isinstance(self._book.rule(layer), Exact) else set()

    def await_input(self, work: Work, block: int, name: InputName) -> None:
        """Record that a block of a forward needs an input that has not arrived."""
        work.missing.add(name)
        self._wait(work, block, (work.task, name))

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
        """Yield each forward that waited for ``what``, and whether its block became clear."""
        for work, block in self._waiting.pop(what, ()):
            self._open[work.task, block] -= 1
            is_clear = not self._open[work.task, block]
            if is_clear:
                del self._open[work.task, block]
                work.unclear.discard(block)
            yield work, is_clear


@dataclass(slots=True)
class _Pair:
    """A tapped output and the pass that takes it, as far as this stage knows them."""

    source: Progress | None = None
    sink: Progress | None = None
    is_through: bool = False
    """True if the source has finished the tapped block on this stage."""


_Key = tuple[int, SequenceId, SequenceId]

Sent = tuple[Progress | None, SendOutput | None]
"""A subnet with one item less to settle, if any, and the output that is sent, if any."""


class Taps:
    """One stage's part of all taps.

    An output waits on its stage until the subnet that takes it is admitted there, because only then
    is the partition of that subnet known.

    A subnet is a *guest* on a stage where it has no block. A guest that takes an output from a
    stage stays under way there until its own stage reports that it has finished (a credit), so its
    window bounds the number of outputs being sent to it. A guest that sends an output to a stage
    stays under way there until the taker has finished; so does any subnet of a lingering stream, on
    every stage. A taker cannot finish before it knows the source of its input.
    """

    def __init__(self, stage: StageId, wiring: Wiring, steps: Steps) -> None:
        self._stage = stage
        self._taps = wiring.taps
        self._steps = steps
        self._lingering = wiring.lingering
        self._pairs: dict[_Key, _Pair] = {}

    def awaited(self, task: Task, blocks: range) -> Iterator[tuple[int, InputName]]:
        number = self._steps.pass_of(task.sequence_id)
        for tap in self._taps:
            stream, block = tap.sink
            if stream == task.stream and block in blocks and tap.sources(number):
                yield block, tap.name

    def admit(self, progress: Progress) -> list[Sent]:
        """Register a subnet under way; returns outputs and subnets that waited for it."""
        sent: list[Sent] = []
        blocks = progress.partition.blocks(self._stage)
        for key in self._keys_of_source(progress):
            self._pairs.setdefault(key, _Pair()).source = progress
            is_here = self._taps[key[0]].source[1] in blocks
            progress.unsettled += is_here or not blocks or self._lingers(key)
            sent += self._meet(key)
        for key in self._keys_of_sink(progress):
            self._pairs.setdefault(key, _Pair()).sink = progress
            progress.unsettled += 1
            sent += self._meet(key)
        return sent

    def passed(self, progress: Progress, block: int) -> list[Sent]:
        """Process the end of a block's forward; returns what is sent now."""
        sent: list[Sent] = []
        for key in self._keys_of_source(progress):
            if self._taps[key[0]].source[1] == block:
                self._pairs[key].is_through = True
                sent += self._send(key)
        return sent

    def retired(self, progress: Progress) -> list[Sent]:
        """Process a subnet that has finished here; returns the credits for its tapped inputs."""
        sent: list[Sent] = []
        for key in self._keys_of_sink(progress):
            pair = self._pairs.pop(key, None)
            if pair is None or pair.source is None:  # sent, and no source waits for it
                continue
            source, (here, there) = pair.source, self._ends(key, pair.source, progress)
            holds = self._lingers(key) or not source.partition.blocks(self._stage)
            credit = None
            if there == self._stage != here and not progress.partition.blocks(here):
                guest = progress.forward.task.at(here)
                credit = SendOutput(guest, name=InputName(CREDIT + self._taps[key[0]].name))
            sent.append((source if holds else None, credit))
        return sent

    def _meet(self, key: _Key) -> list[Sent]:
        """If both subnets are known, send the available output and release unaffected subnets."""
        pair = self._pairs[key]
        source, sink = pair.source, pair.sink
        if source is None or sink is None:
            return []
        here, there = self._ends(key, source, sink)
        gets_credit = here == self._stage and not sink.partition.blocks(here)
        sent: list[Sent] = [] if gets_credit else [(sink, None)]
        if here == self._stage:
            return sent + self._send(key)
        if there != self._stage and not self._lingers(key):
            del self._pairs[key]
            if not source.partition.blocks(self._stage):
                sent.append((source, None))
        return sent

    def _send(self, key: _Key) -> list[Sent]:
        pair, tap = self._pairs[key], self._taps[key[0]]
        source, sink = pair.source, pair.sink
        if source is None or sink is None or not pair.is_through:
            return []
        task = sink.forward.task.at(sink.partition.stage_of(tap.sink[1]))
        output = SendOutput(task, name=tap.name, source=source.forward.task)
        if self._lingers(key):
            return [(None, output)]
        del self._pairs[key]
        return [(source, output)]

    def _lingers(self, key: _Key) -> bool:
        return self._taps[key[0]].source[0] in self._lingering

    def _ends(self, key: _Key, source: Progress, sink: Progress) -> tuple[StageId, StageId]:
        tap = self._taps[key[0]]
        return source.partition.stage_of(tap.source[1]), sink.partition.stage_of(tap.sink[1])

    def _keys_of_source(self, progress: Progress) -> Iterator[_Key]:
        stream, sequence_id = progress.subnet[:2]
        number = self._steps.pass_of(sequence_id)
        for index, tap in enumerate(self._taps):
            if tap.source[0] == stream:
                for sink in tap.sinks(number):
                    yield index, sequence_id, self._steps.trained_pass(sequence_id, sink)

    def _keys_of_sink(self, progress: Progress) -> Iterator[_Key]:
        stream, sequence_id = progress.subnet[:2]
        number = self._steps.pass_of(sequence_id)
        for index, tap in enumerate(self._taps):
            if tap.sink[0] == stream:
                for source in tap.sources(number):
                    yield index, self._steps.trained_pass(sequence_id, source), sequence_id

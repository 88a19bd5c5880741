"""What blocks of one stream hand to blocks of another: who waits for it, and where it goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from naspipe.config.ids import SequenceId, StageId
from naspipe.config.steps import Steps
from naspipe.config.wiring import CREDIT, InputName, Wiring
from naspipe.core.commands import SendOutput
from naspipe.core.task import Task
from naspipe.stage.work import Progress


@dataclass(slots=True)
class _Pair:
    """A tapped output and the pass that takes it, as far as they are known here."""

    source: Progress | None = None
    sink: Progress | None = None
    is_through: bool = False
    """Whether the source is through the tapped block, on this stage."""


_Key = tuple[int, SequenceId, SequenceId]
"""A tap, the source's and the sink's sequence ID."""

Sent = tuple[Progress | None, SendOutput | None]
"""A subnet with one thing less to settle, and what goes out, if there is anything."""


class Taps:
    """One stage's part of all taps.

    An output waits on its stage until the subnet that takes it is admitted there: only then is its
    partition known.

    A subnet is a *guest* on a stage where it has no block. One that takes an output from there
    stays under way there until its own stage says that it is through (a credit). So its window
    bounds how many outputs are on their way to it. One that hands an output to a stage where it is
    a guest stays under way there until the taker is through; so does any subnet of a stream that
    lingers, on every stage. A taker is not through before it knows whom it takes from.

    Args:
        stage: which one.
        wiring: how the streams are joined that this stage takes part in.
        steps: how passes form steps, in every stream.
    """

    def __init__(self, stage: StageId, wiring: Wiring, steps: Steps) -> None:
        self._stage = stage
        self._taps = wiring.taps
        self._steps = steps
        self._lingering = wiring.lingering
        self._pairs: dict[_Key, _Pair] = {}

    def awaited(self, task: Task, blocks: range) -> Iterator[tuple[int, InputName]]:
        """What the blocks of a forward wait for on this stage."""
        number = self._steps.pass_of(task.sequence_id)
        for tap in self._taps:
            stream, block = tap.sink
            if stream == task.stream and block in blocks and tap.sources(number):
                yield block, tap.name

    def admit(self, progress: Progress) -> list[Sent]:
        """A subnet is under way; returns what waited for it, and who need not wait for it."""
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
        """A forward is through a block; returns what goes out now."""
        sent: list[Sent] = []
        for key in self._keys_of_source(progress):
            if self._taps[key[0]].source[1] == block:
                self._pairs[key].is_through = True
                sent += self._send(key)
        return sent

    def credited(self, progress: Progress, name: InputName) -> list[Sent]:
        """A guest is through on its own stage, if that is what arrived."""
        return [(progress, None)] if name.startswith(CREDIT) else []

    def retired(self, progress: Progress) -> list[Sent]:
        """A subnet is through here; returns the credits for what it took."""
        sent: list[Sent] = []
        for key in self._keys_of_sink(progress):
            pair = self._pairs.pop(key, None)
            if pair is None or pair.source is None:  # sent, and nobody waits for it
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
        """Both may be known by now: whom to tell, and where to; whoever is not concerned goes."""
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
        """The stages of the tapped block, and of the one that takes it."""
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

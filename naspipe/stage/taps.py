"""What blocks of one stream hand to blocks of another: who waits for it, and where it goes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from naspipe.core.commands import SendOutput
from naspipe.core.ids import SequenceId, StageId
from naspipe.core.steps import Steps
from naspipe.core.task import Task
from naspipe.core.wiring import CREDIT, InputName, Tap
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
    a guest stays under way there until the taker is through; a taker is not through before it knows
    whom it takes from.

    Args:
        stage: which one.
        taps: between streams that this stage takes part in.
        steps: how passes form steps, in every stream.
        lingering: streams whose subnets stay under way until all who take their outputs are
            through.
    """

    def __init__(
        self, stage: StageId, taps: Iterable[Tap], steps: Steps, lingering: Collection[int] = ()
    ) -> None:
        self._stage = stage
        self._taps = tuple(taps)
        self._steps = steps
        self._lingering = lingering
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
            progress.unsettled += not blocks or self._taps[key[0]].source[1] in blocks
            sent += self._meet(key)
        for key in self._keys_of_sink(progress):
            self._pairs.setdefault(key, _Pair()).sink = progress
            progress.unsettled += not blocks or self._taps[key[0]].sink[1] in blocks
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
            source, (here, there) = pair.source, self._ends(key[0], pair.source, progress)
            holds = here == self._stage or not source.partition.blocks(self._stage)
            credit = None
            if there == self._stage != here and not progress.partition.blocks(here):
                guest = progress.forward.task.at(here)
                credit = SendOutput(guest, name=InputName(CREDIT + self._taps[key[0]].name))
            sent.append((source if holds else None, credit))
        return sent

    def _meet(self, key: _Key) -> list[Sent]:
        """Two may know of each other by now; those who need not wait for each other do not."""
        pair = self._pairs[key]
        source, sink = pair.source, pair.sink
        if source is None or sink is None:
            return []
        here, there = self._ends(key[0], source, sink)
        if there == self._stage:  # the taker knows by now whom to tell
            return [(sink, None), *(self._send(key) if here == self._stage else ())]
        if here == self._stage:
            return self._send(key)
        del self._pairs[key]
        both = (source, sink)
        return [(each, None) for each in both if not each.partition.blocks(self._stage)]

    def _send(self, key: _Key) -> list[Sent]:
        pair, tap = self._pairs[key], self._taps[key[0]]
        if pair.source is None or pair.sink is None or not pair.is_through:
            return []
        task = pair.sink.forward.task.at(pair.sink.partition.stage_of(tap.sink[1]))
        output = SendOutput(task, name=tap.name, source=pair.source.forward.task)
        if tap.source[0] in self._lingering:
            return [(None, output)]
        source = pair.source
        del self._pairs[key]
        return [(source, output)]

    def _ends(self, tap: int, source: Progress, sink: Progress) -> tuple[StageId, StageId]:
        """The stages of the tapped block, and of the one that takes it."""
        from_, to = self._taps[tap].source[1], self._taps[tap].sink[1]
        return source.partition.stage_of(from_), sink.partition.stage_of(to)

    def _keys_of_source(self, progress: Progress) -> Iterator[_Key]:
        stream, sequence_id, _ = progress.subnet
        first, number = self._steps.first(sequence_id), self._steps.pass_of(sequence_id)
        for index, tap in enumerate(self._taps):
            if tap.source[0] == stream:
                for sink in tap.sinks(number):
                    yield index, sequence_id, SequenceId(first + sink)

    def _keys_of_sink(self, progress: Progress) -> Iterator[_Key]:
        stream, sequence_id, _ = progress.subnet
        first, number = self._steps.first(sequence_id), self._steps.pass_of(sequence_id)
        for index, tap in enumerate(self._taps):
            if tap.sink[0] == stream:
                for source in tap.sources(number):
                    yield index, SequenceId(first + source), sequence_id

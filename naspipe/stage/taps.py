"""What blocks of one stream hand to blocks of another: who waits for it, and where it goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from naspipe.core.commands import SendOutput
from naspipe.core.ids import SequenceId, StageId, StreamId
from naspipe.core.steps import Steps
from naspipe.core.task import Task, TaskKind
from naspipe.core.wiring import InputName, Wiring
from naspipe.stage.work import Progress

_Pass = tuple[StreamId, SequenceId]


@dataclass(slots=True)
class _Pair:
    """A tapped output and the pass that takes it, until it is sent or belongs to another stage."""

    is_here: bool | None = None
    """Whether the tapped block is on this stage; None until its subnet is admitted."""
    source: Progress | None = None
    """The tapped subnet, once it is through the block."""
    sink: Task | None = None
    """Who takes it; None until that subnet is admitted."""


class Taps:
    """One stage's part of all taps.

    An output waits on its stage until the subnet that takes it is admitted there: only then is its
    partition known. Every stage is told of every admission, so that is always said in the end.

    Args:
        stage: which one.
        wiring: how the streams are joined.
        steps: how passes form steps, in every stream.
    """

    def __init__(self, stage: StageId, wiring: Wiring, steps: Steps) -> None:
        self._stage = stage
        self._taps = wiring.taps
        self._lenders = [
            tap
            for tap in wiring.taps
            if tap.source[0] != tap.sink[0] and not wiring.of(tap.source[0]).is_trained
        ]
        """Taps from streams that are not trained to others."""
        self._steps = steps
        self._pairs: dict[tuple[int, SequenceId, SequenceId], _Pair] = {}
        """By tap, the source's and the sink's sequence ID."""
        self._lent: dict[_Pass, list[Progress]] = {}
        """By the pass that takes them: passes of other streams, which stay until it retires."""
        self._gone: set[tuple[_Pass, _Pass]] = set()
        """Who takes, and from whom: retired here before the other one was admitted."""

    def awaited(self, task: Task, blocks: range) -> Iterator[tuple[int, InputName]]:
        """What the blocks of a forward wait for on this stage."""
        number = self._steps.pass_of(task.sequence_id)
        for tap in self._taps:
            stream, block = tap.sink
            if stream == task.stream and block in blocks and tap.sources(number):
                yield block, tap.name

    def admit(self, progress: Progress) -> list[tuple[Progress, SendOutput]]:
        """A subnet is under way; returns what waited for it, and whose output each is."""
        sent = []
        self._lend(progress)
        stream, sequence_id, _ = progress.subnet
        first = self._steps.first(sequence_id)
        number = self._steps.pass_of(sequence_id)
        for index, tap in enumerate(self._taps):
            if tap.source[0] == stream:
                is_here = tap.source[1] in progress.partition.blocks(self._stage)
                for sink in tap.sinks(number):
                    key = (index, sequence_id, SequenceId(first + sink))
                    self._pairs.setdefault(key, _Pair()).is_here = is_here
                    progress.unsettled += is_here
                    sent += self._send(key)
            if tap.sink[0] == stream:
                stage = progress.partition.stage_of(tap.sink[1])
                for source in tap.sources(number):
                    key = (index, SequenceId(first + source), sequence_id)
                    pair = self._pairs.setdefault(key, _Pair())
                    pair.sink = Task(stream, sequence_id, TaskKind.FORWARD, stage)
                    sent += self._send(key)
        return sent

    def retire(self, progress: Progress) -> list[Progress]:
        """A subnet retires here; returns those that stayed for it, each with one thing settled."""
        own = progress.subnet[:2]
        stayed = self._lent.pop(own, [])
        known = {each.subnet[:2] for each in stayed}
        self._gone.update((own, each) for each in self._sources(own) - known)
        return stayed

    def _lend(self, progress: Progress) -> None:
        """A subnet of a stream that is not trained stays until those that take from it retire.

        So its window counts from the oldest of them: it cannot run away from them.
        """
        own = progress.subnet[:2]
        for taker in self._sinks(own):
            if (taker, own) in self._gone:
                self._gone.remove((taker, own))
            else:
                progress.unsettled += 1
                self._lent.setdefault(taker, []).append(progress)

    def _sinks(self, own: _Pass) -> set[_Pass]:
        """The passes of others that take from a pass of a stream that is not trained."""
        stream, first, number = self._placed(own)
        return {
            (tap.sink[0], SequenceId(first + each))
            for tap in self._lenders if tap.source[0] == stream
            for each in tap.sinks(number)
        }  # fmt: skip

    def _sources(self, own: _Pass) -> set[_Pass]:
        """The passes of streams that are not trained from which a pass takes."""
        stream, first, number = self._placed(own)
        return {
            (tap.source[0], SequenceId(first + each))
            for tap in self._lenders if tap.sink[0] == stream
            for each in tap.sources(number)
        }  # fmt: skip

    def _placed(self, own: _Pass) -> tuple[StreamId, SequenceId, int]:
        stream, sequence_id = own
        return stream, self._steps.first(sequence_id), self._steps.pass_of(sequence_id)

    def passed(self, progress: Progress, block: int) -> list[tuple[Progress, SendOutput]]:
        """A forward is through a block; returns what goes out now, and whose output each is."""
        sent = []
        stream, sequence_id, _ = progress.subnet
        for index, tap in enumerate(self._taps):
            if tap.source == (stream, block):
                for sink in tap.sinks(self._steps.pass_of(sequence_id)):
                    first = self._steps.first(sequence_id)
                    key = (index, sequence_id, SequenceId(first + sink))
                    self._pairs[key].source = progress
                    sent += self._send(key)
        return sent

    def _send(self, key: tuple[int, SequenceId, SequenceId]) -> list[tuple[Progress, SendOutput]]:
        pair = self._pairs[key]
        if pair.sink is None or pair.is_here is None:
            return []
        if not pair.is_here:
            del self._pairs[key]
            return []
        if pair.source is None:
            return []
        del self._pairs[key]
        source = pair.source.forward.task
        return [(pair.source, SendOutput(pair.sink, name=self._taps[key[0]].name, source=source))]

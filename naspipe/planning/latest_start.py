"""Latest starts: how long before the end each access has to begin, where stages are few.

Two subnets share no layer. The critical path says of either that it may begin as late as the other
one. But a stage runs one access at a time, so one of them has to begin earlier. Here a pipeline is
carried out backwards: from the last WRITE to the first READ, an access when all that wait for it
are through, each stage one at a time. When an access begins in that schedule, counted from the
end, is its priority (`docs/schedule.md`, dispatch orders). Project planners call it a backward
pass with resources.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from naspipe.core.events import Priorities
from naspipe.core.ids import LayerId
from naspipe.core.layer_rules import BlockRule, rule_of
from naspipe.core.partition import Partition
from naspipe.core.rules import Exact, Follows, Frozen, steps_behind
from naspipe.core.steps import ONE_PASS, Steps
from naspipe.core.subnet import Subnet
from naspipe.planning.cost import CostTable


@dataclass(frozen=True, slots=True, kw_only=True)
class CutStream:
    """A stream whose subnets are cut into stages."""

    subnets: Sequence[Subnet]
    """In sequence order, whole steps."""
    partitions: Sequence[Partition]
    """Of every subnet."""
    rules: Sequence[BlockRule]
    """Of each block of the chain."""
    costs: CostTable
    """Of every layer."""
    ordered: Collection[LayerId] | None = None
    """Layers through which the passes of a step go in their order; None for every layer."""
    is_trained: bool = True
    """Otherwise there are forwards only."""


def latest_start_priorities(
    streams: Sequence[CutStream], steps: Steps = ONE_PASS, window: int = 64
) -> list[list[Priorities]]:
    """The priorities of every subnet of every stream, in nanoseconds from the end of all.

    O(subnets * blocks * log(window)) in time; of subnets, as many as the window are looked at
    at once.

    Args:
        streams: which share the stages.
        steps: how passes form steps, in every stream.
        window: sequence IDs of a stream that are under way at a time.
    """
    schedule = _Backwards(steps)
    for number, stream in enumerate(streams):
        schedule.add(_StreamEnd(number, stream, steps, max(1, window // steps.passes)))
    schedule.run()
    return [each.found[::-1] for each in schedule.streams]


@dataclass(slots=True, eq=False)
class _Way:
    """A subnet on its way back: backwards from the first block on, then forwards from the last."""

    stream: int
    number: int
    """Counted from the end of its stream."""
    stages: list[int]
    """By place on the way."""
    durations: list[int]
    place: int
    """The access that is next."""
    unmet: Counter[int] = field(default_factory=Counter)
    """By place, how many accesses of others come first."""
    waiters: dict[int, list[tuple[_Way, int]]] = field(default_factory=dict)
    """By place, the accesses of others that wait for it."""
    levels: list[int] = field(default_factory=list)
    """When the accesses so far began, from the end of all."""

    def wait(self, place: int, other: _Way, until: int) -> None:
        """The access at a place comes behind another's, unless that is through."""
        if other.place <= until:
            self.unmet[place] += 1
            other.waiters.setdefault(until, []).append((self, place))

    @property
    def key(self) -> tuple[bool, int, int]:
        """The paper's order, seen from the end: what was begun is finished, younger ones first."""
        return (2 * self.place < len(self.stages), self.number, self.stream)


class _StreamEnd:
    """Lets the steps of one stream in, from the last to the first, and knows who waits for whom."""

    def __init__(self, number: int, stream: CutStream, steps: Steps, window: int) -> None:
        self.found: list[Priorities] = []
        """Of the last subnet first."""
        self._number, self._stream, self._steps, self._window = number, stream, steps, window
        self._levels: dict[int, list[int]] = {}
        self._num_left = len(stream.subnets)
        self._readers: dict[LayerId, deque[tuple[int, list[_Way]]]] = {}
        """By layer, the nearest later steps that use it, the nearest first."""
        self._stages: dict[Partition, list[int]] = {}

    def open(self) -> Iterator[_Way]:
        """The subnets that may be under way now and were not yet."""
        size = self._steps.passes
        first_open = len(self._stream.subnets) - len(self.found)
        last_step = self._steps.step(first_open - 1)
        while self._num_left and self._steps.step(self._num_left - 1) > last_step - self._window:
            self._num_left -= size
            yield from self._let_in(self._stream.subnets[self._num_left :][:size])

    def retire(self, way: _Way) -> None:
        """A subnet is through."""
        self._levels[way.number] = way.levels
        blocks = len(self._stream.rules)
        while (levels := self._levels.pop(len(self.found), None)) is not None:
            backward = levels[:-blocks] or [0] * blocks
            self.found.append(Priorities(tuple(levels[: -blocks - 1 : -1]), tuple(backward)))

    def _let_in(self, step: Sequence[Subnet]) -> list[_Way]:
        written: set[LayerId] = set()
        users: dict[LayerId, list[_Way]] = {}
        ways: list[_Way] = []
        for subnet in reversed(step):
            way = self._begin(subnet, written)
            ways.append(way)
            for layer in self._layers(subnet):
                self._follow_passes(way, layer, users.get(layer, ()))
                users.setdefault(layer, []).append(way)
        number = self._steps.step(step[0].sequence_id)
        self._follow_readers(number, ways, users)
        for layer, own in users.items():
            reach = steps_behind(rule_of(self._stream.rules, layer)) or 0
            self._readers.setdefault(layer, deque(maxlen=reach + 1)).appendleft((number, own))
        return ways

    def _layers(self, subnet: Subnet) -> Iterator[LayerId]:
        """Those that it changes."""
        for layer in map(subnet.layer, range(len(subnet.chain))):
            rule = rule_of(self._stream.rules, layer)
            if self._stream.is_trained and not isinstance(rule, Frozen | Follows):
                yield layer

    def _begin(self, subnet: Subnet, written: set[LayerId]) -> _Way:
        partition, trained = self._stream.partitions[subnet.sequence_id], self._stream.is_trained
        if partition not in self._stages:
            there: list[int] = [*map(partition.stage_of, range(partition.num_blocks))]
            self._stages[partition] = there + there[::-1] if trained else there[::-1]
        chain = [self._stream.costs.of(*place) for place in enumerate(subnet.chain)]
        durations = [cost.backward_ns for cost in chain] if trained else []
        for layer in self._layers(subnet):
            if layer not in written:
                written.add(layer)
                durations[layer.block] += chain[layer.block].write_ns
        durations += [cost.forward_ns for cost in reversed(chain)]
        number = len(self._stream.subnets) - 1 - subnet.sequence_id
        return _Way(self._number, number, self._stages[partition], durations, 0)

    def _follow_passes(self, way: _Way, layer: LayerId, later: Sequence[_Way]) -> None:
        """Behind the next pass of the step, where passes go through a layer in their order."""
        if not later or not isinstance(rule_of(self._stream.rules, layer), Exact):
            return
        if self._stream.ordered is None or layer in self._stream.ordered:
            place = len(way.stages) - 1 - layer.block
            way.wait(place, later[-1], place)

    def _follow_readers(
        self, step: int, ways: Sequence[_Way], users: dict[LayerId, list[_Way]]
    ) -> None:
        """Each backward behind the forwards that read what its step WRITEs."""
        for layer, own in users.items():
            rule = rule_of(self._stream.rules, layer)
            later = self._readers.get(layer, ())
            readers = next((ways for number, ways in later if rule.last_read(number) >= step), ())
            for reader in readers:
                until = len(reader.stages) - 1 - layer.block
                for way in ways if self._steps.is_gated else own:
                    way.wait(0 if self._steps.is_gated else layer.block, reader, until)


class _Backwards:
    """Stages that work from the end to the beginning, each on one access at a time."""

    def __init__(self, steps: Steps) -> None:
        self.streams: list[_StreamEnd] = []
        self._now = 0
        self._running: list[tuple[int, int, _Way]] = []
        """A heap: when a stage will be through with an access."""
        self._ready: dict[int, list[tuple[tuple[bool, int, int], _Way]]] = {}
        """By stage, a heap."""
        self._busy: set[int] = set()

    def add(self, stream: _StreamEnd) -> None:
        """One more stream."""
        self.streams.append(stream)

    def run(self) -> None:
        """To the beginning of all streams."""
        for stream in self.streams:
            self._open(stream)
        self._dispatch()
        while self._running:
            self._now = self._running[0][0]
            while self._running and self._running[0][0] == self._now:
                _, stage, way = heapq.heappop(self._running)
                self._busy.remove(stage)
                self._end(way)
            self._dispatch()

    def _open(self, stream: _StreamEnd) -> None:
        for way in list(stream.open()):
            if way.stages:
                self._offer(way)
            else:
                stream.retire(way)  # a pass that nobody needs

    def _offer(self, way: _Way) -> None:
        if not way.unmet[way.place]:
            heapq.heappush(self._ready.setdefault(way.stages[way.place], []), (way.key, way))

    def _end(self, way: _Way) -> None:
        place = way.place
        way.levels.append(self._now)
        way.place += 1
        for other, its in way.waiters.pop(place, ()):
            other.unmet[its] -= 1
            if its == other.place:
                self._offer(other)
        if way.place < len(way.stages):
            self._offer(way)
        else:
            stream = self.streams[way.stream]
            stream.retire(way)
            self._open(stream)

    def _dispatch(self) -> None:
        for stage, ready in self._ready.items():
            if ready and stage not in self._busy:
                _, way = heapq.heappop(ready)
                self._busy.add(stage)
                end = self._now + way.durations[way.place]
                heapq.heappush(self._running, (end, stage, way))

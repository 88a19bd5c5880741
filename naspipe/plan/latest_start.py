"""Latest starts: how long before the end each access has to begin, on a given number of stages.

For two subnets without a common layer, the critical path yields the same latest start. But a stage
runs one access at a time, so one of them has to begin earlier. This module therefore schedules a
pipeline backwards in time: from the last WRITE to the first READ, each access once all accesses
that wait for it are done, one at a time on each stage. The priority of an access is its start in
that schedule, counted from the end (`docs/schedule.md`, dispatch orders). In project planning this
is called backward scheduling with resource constraints.

The first backward schedule follows the paper's order. Then the stream is scheduled forwards by
these priorities, and backwards again, in the order of the latest ends. This is forward-backward
improvement (Tormos and Lova 2001), repeated as long as it is worth the time. The shortest backward
schedule is used.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np

from naspipe.config.ids import LayerId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import BlockRule, Exact, Follows, Frozen, rule_of, steps_behind
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.engine.events import Priorities
from naspipe.plan.costs import CostTable


@dataclass(slots=True, eq=False)
class Way:
    """A subnet's accesses in order, forwards then backwards, numbered by position.

    A backward includes the layer's WRITE, unless that is a separate access; separate WRITEs have
    the positions after the chain.
    """

    stream: int
    number: int
    stages: Sequence[int]
    durations: list[int]
    written: dict[int, int] = field(default_factory=dict)
    """For the position of a backward, that of its WRITE, if it is a separate access."""
    earlier: list[tuple[int, Way, int]] = field(default_factory=list)
    """Positions, and the access (way and position) of another way that has to precede each."""
    first: int = 0
    """The number of its first access; the others are numbered consecutively."""

    def ends(self) -> tuple[list[int], list[int]]:
        """Return the numbers of the accesses that begin the way, and of those that end it."""
        last = len(self.stages) - 1
        if last < 0:
            return [], []
        behind = [*self.written.values()] + [last] * (last not in self.written)
        return [self.first], [self.first + place for place in behind]


class ListSchedule:
    """Streams that can be scheduled repeatedly, each time in another order.

    Args:
        streams: the ways of each stream in sequence order, a multiple of whole steps.
        passes: number of passes of a step.
        window: maximum number of steps of a stream that are under way.
    """

    def __init__(self, streams: Sequence[Sequence[Way]], passes: int, window: int) -> None:
        self._streams = streams
        self._passes, self._window = passes, window
        self.stages: list[int] = []
        """The stage of each access; the accesses of a way have consecutive numbers."""
        self._durations: list[int] = []
        for way in (way for own in streams for way in own):
            way.first = len(self.stages)
            self.stages += [*way.stages, *(way.stages[place] for place in way.written)]
            self._durations += way.durations
        count = len(self.stages)
        before: list[list[int]] = [[] for _ in range(count)]
        behind: list[list[int]] = [[] for _ in range(count)]
        for one, other in self._pairs():
            behind[one].append(other)
            before[other].append(one)
        self._before, self._behind = before, behind

    def _pairs(self) -> Iterable[tuple[int, int]]:
        for own in self._streams:
            for way in own:
                end = way.first + len(way.stages)
                yield from zip(range(way.first, end - 1), range(way.first + 1, end), strict=True)
                for place, its in way.written.items():
                    yield way.first + place, way.first + its
                for place, other, its in way.earlier:
                    yield other.first + its, way.first + place

    def run(self, order: Sequence[int], is_backwards: bool) -> list[int]:
        """Return when each access ended, counted from the beginning of the schedule.

        Args:
            order: all accesses; among those that are ready, a stage runs the first.
            is_backwards: schedule from the last step to the first, each way from its last access
                on.
        """
        stages, durations = self.stages, self._durations
        waiters = self._before if is_backwards else self._behind
        unmet = [len(each) for each in (self._behind if is_backwards else self._before)]
        windows = [_Window(own, self._passes, self._window, is_backwards) for own in self._streams]
        window_of: dict[int, _Window] = {}
        for window in windows:
            for entry in (entry for entries in window.entries for entry in entries):
                unmet[entry] += 1  # until it is admitted
            window_of |= dict.fromkeys(window.places, window)
        place_in_order = [0] * len(stages)
        for place, access in enumerate(order):
            place_in_order[access] = place
        count = 1 + max(stages, default=0)
        ready: list[list[int]] = [[] for _ in range(count)]
        taken = [-1] * count
        ends = [0] * len(stages)
        running: list[int] = []  # a heap of end times and stages
        met = [entry for window in windows for entry in window.let_in()]
        now, push, pop = 0, heapq.heappush, heapq.heappop
        while True:
            for access in met:
                unmet[access] -= 1
                if not unmet[access]:
                    stage = stages[access]
                    push(ready[stage], place_in_order[access])
            for stage, waiting in enumerate(ready):
                if waiting and taken[stage] < 0:
                    access = taken[stage] = order[pop(waiting)]
                    push(running, (now + durations[access]) * count + stage)
            if not running:
                return ends
            now = running[0] // count
            until, met = (now + 1) * count, []
            while running and running[0] < until:
                stage = pop(running) % count
                access, taken[stage] = taken[stage], -1
                ends[access] = now
                met += waiters[access]
                if access in window_of:
                    met += window_of[access].let_in_behind(access)


class _Window:
    """The ways of a stream that may run: a number of steps from the oldest unfinished one on."""

    def __init__(self, own: Sequence[Way], passes: int, window: int, is_backwards: bool) -> None:
        ways = own[::-1] if is_backwards else own
        ends = [way.ends()[:: -1 if is_backwards else 1] for way in ways]
        self.entries = [first for first, _ in ends]
        """For each way, the accesses that it begins with."""
        self.places = {each: place for place, (_, last) in enumerate(ends) for each in last}
        """For each access that ends a way, the index of that way."""
        self._left = [len(last) for _, last in ends]
        """For each way, the number of its ending accesses that have not finished."""
        self._passes, self._window = passes, window
        self._oldest = self._let_in = 0

    def let_in(self) -> list[int]:
        """Admit further ways as far as possible; returns the accesses that they begin with."""
        found: list[int] = []
        while True:
            while self._oldest < self._let_in and not self._left[self._oldest]:
                self._oldest += 1
            begin = self._let_in
            end = (self._oldest // self._passes + self._window) * self._passes
            end = self._let_in = min(len(self.entries), end)
            if end <= begin:
                return found
            found += [entry for entries in self.entries[begin:end] for entry in entries]

    def let_in_behind(self, last: int) -> list[int]:
        """Record that an access that ends a way has finished, then as :meth:`let_in`."""
        self._left[place := self.places[last]] -= 1
        return [] if self._left[place] else self.let_in()


SHARE, MOST_ROUNDS = 0.02, 16
"""Share of the stream's own time that improvement may take, and the maximum number of rounds."""

PIECE = 1024
"""Number of subnets of a stream that are scheduled together, plus two windows of those after
them."""

_ROUND_NS = 4_000
"""Time to schedule one access in one round, forwards and backwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutStream:
    """A stream whose subnets are cut into stages."""

    subnets: Sequence[Subnet]
    partitions: Sequence[Partition]
    rules: Sequence[BlockRule]
    costs: CostTable
    ordered: Collection[LayerId] | None = None
    """Layers that the passes of a step must use in their order; None for every layer."""
    is_trained: bool = True
    """If False, there are forwards only."""


def latest_start_priorities(
    streams: Sequence[CutStream],
    steps: Steps = ONE_PASS,
    window: int = 64,
    rounds: int | None = None,
    defers_writes: bool = False,
) -> list[list[Priorities]]:
    """Return the priorities of every subnet of every stream, in nanoseconds from the end of all.

    Each round takes O(n * log(n)) time for n accesses.

    Args:
        streams: the streams that share the stages.
        steps: how passes form steps, in every stream.
        window: number of sequence IDs of a stream that are under way at a time.
        rounds: number of rounds of improvement; None for as many as are worth the time.
        defers_writes: a stage may run other accesses between a backward and its WRITE. Only if
            every pass is a step, and no step waits for all of its gradients.
    """
    pieces = max(1, -(-max(len(each.subnets) for each in streams) // PIECE))
    look = -(-2 * window // steps.passes) * steps.passes

    def begin_of(stream: CutStream, piece: int) -> int:
        return len(stream.subnets) // steps.passes * piece // pieces * steps.passes

    found: list[list[Priorities]] = [[] for _ in streams]
    for piece in reversed(range(pieces)):
        ends = [begin_of(stream, piece + 1) for stream in streams]
        begins = [begin_of(stream, piece) for stream in streams]
        pieces_of = [
            replace(
                stream,
                subnets=stream.subnets[begin : end + look],
                partitions=stream.partitions[begin : end + look],
            )
            for stream, begin, end in zip(streams, begins, ends, strict=True)
        ]
        ways, starts = _scheduled(pieces_of, steps, window, rounds, defers_writes)
        own = [
            [_priorities(way, starts, len(stream.rules), defers_writes) for way in mine]
            for mine, stream in zip(ways, streams, strict=True)
        ]
        sizes = [end - begin for begin, end in zip(begins, ends, strict=True)]
        levels = [  # how much later the streams end than the piece, by common subnets
            later.forward[0] - mine.forward[0]
            for each, size, behind in zip(own, sizes, found, strict=True)
            for mine, later in zip(each[size : size + window], behind, strict=False)
        ]
        later = int(fmean(levels)) if levels else 0
        found = [
            [
                Priorities(*(tuple(level + later for level in row) for row in each))
                for each in mine[:size]
            ]
            + behind
            for mine, size, behind in zip(own, sizes, found, strict=True)
        ]
    return found


def shortest_ns(streams: Sequence[CutStream], steps: Steps, window: int, rounds: int) -> int:
    """Return the length of the shortest schedule of all streams that was found."""
    return max(_scheduled(streams, steps, window, rounds)[1], default=0)


def _scheduled(
    streams: Sequence[CutStream],
    steps: Steps,
    window: int,
    rounds: int | None,
    defers_writes: bool = False,
) -> tuple[list[list[Way]], list[int]]:
    """Return the ways of each stream, and how long before the end each of their accesses begins."""
    ways = [
        list(_StreamWays(number, stream, steps, defers_writes).made())
        for number, stream in enumerate(streams)
    ]
    schedule = ListSchedule(ways, steps.passes, max(1, window // steps.passes))
    ends = shortest = schedule.run(_paper_backwards(ways), is_backwards=True)
    numbers = [way.number for own in ways for way in own for _ in way.durations]
    for _ in range(_rounds(ways) if rounds is None else rounds):
        latest = schedule.run(_last_first(ends, numbers), is_backwards=False)
        ends = schedule.run(_last_first(latest, numbers), is_backwards=True)
        if max(ends) < max(shortest):
            shortest = ends
    return ways, shortest


def _paper_backwards(ways: Sequence[Sequence[Way]]) -> list[int]:
    """Return the paper's order seen from the end: started subnets first, then younger ones."""
    keys = [
        (place >= len(way.stages) // 2, own[-1].number - way.number, way.stream)
        for own in ways
        for way in own
        for place in range(len(way.durations))
    ]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _last_first(ends: Sequence[int], numbers: Sequence[int]) -> list[int]:
    """Return the accesses by descending end; among equal ends, older subnets come first."""
    found: list[int] = np.lexsort((np.array(numbers), -np.array(ends, int))).tolist()
    return found


def _rounds(ways: Sequence[Sequence[Way]]) -> int:
    """Return the number of improvement rounds that are worth their time."""
    everyone = [way for own in ways for way in own]
    accesses = sum(len(way.durations) for way in everyone)
    if not accesses:
        return 0
    stages = len({stage for way in everyone for stage in way.stages})
    takes_ns = sum(sum(way.durations) for way in everyone) / stages
    return min(MOST_ROUNDS, int(SHARE * takes_ns / (accesses * _ROUND_NS)))


def _priorities(way: Way, ends: Sequence[int], blocks: int, defers_writes: bool) -> Priorities:
    levels = ends[way.first : way.first + len(way.stages)] or [0] * blocks
    backward = levels[: blocks - 1 : -1] or [0] * blocks
    write = [*backward] if defers_writes else []
    for place, its in way.written.items():
        write[2 * blocks - 1 - place] = ends[way.first + its]
    return Priorities(tuple(levels[:blocks]), tuple(backward), tuple(write))


class _StreamWays:
    """Makes the ways of one stream, each with the accesses of others that it waits for."""

    def __init__(self, number: int, stream: CutStream, steps: Steps, defers_writes: bool) -> None:
        self._number, self._stream, self._steps = number, stream, steps
        self._defers_writes = defers_writes
        self._writers: dict[LayerId, deque[tuple[int, list[Way]]]] = {}
        """For each layer, the last steps that changed it, and the ways that a reader waits for."""
        self._stages: dict[Partition, list[int]] = {}

    def made(self) -> Iterator[Way]:
        size = self._steps.passes
        cut = list(zip(self._stream.subnets, self._stream.partitions, strict=True))
        for first in range(0, len(cut), size):
            yield from self._step(cut[first : first + size])

    def _step(self, cut: Sequence[tuple[Subnet, Partition]]) -> list[Way]:
        rules, step = self._stream.rules, [subnet for subnet, _ in cut]
        number = self._steps.step(step[0].sequence_id)
        ways = [self._begin(*each) for each in cut]
        users: dict[LayerId, list[Way]] = {}
        for subnet, way in zip(step, ways, strict=True):
            for layer in self._layers(subnet):
                self._follow_writers(way, layer, number)
                before = users.setdefault(layer, [])
                is_ordered = self._stream.ordered is None or layer in self._stream.ordered
                if before and is_ordered and isinstance(rule_of(rules, layer), Exact):
                    way.earlier.append((layer.block, before[-1], layer.block))
                before.append(way)
        for layer, own in users.items():
            backward = len(own[-1].stages) - 1 - layer.block
            last = step[ways.index(own[-1])]
            cost = self._stream.costs.of(layer.block, last.chain[layer.block])
            # If WRITEs are deferred, so is the part of the backward that they include.
            takes = cost.write_ns + (cost.owed_ns if self._defers_writes else 0)
            if self._defers_writes and takes:
                own[-1].written[backward] = len(own[-1].durations)  # a separate access
                own[-1].durations.append(takes)
            else:
                own[-1].durations[backward] += takes
            reach = steps_behind(rule_of(rules, layer)) or 0
            writers = ways if self._steps.is_gated else own
            kept = self._writers.setdefault(layer, deque(maxlen=reach + 1))
            kept.append((number, writers))
        return ways

    def _layers(self, subnet: Subnet) -> Iterator[LayerId]:
        """Yield the layers that a subnet changes."""
        for layer in map(subnet.layer, range(len(subnet.chain))):
            rule = rule_of(self._stream.rules, layer)
            if self._stream.is_trained and not isinstance(rule, Frozen | Follows):
                yield layer

    def _begin(self, subnet: Subnet, partition: Partition) -> Way:
        trained = self._stream.is_trained
        if not subnet.chain:
            return Way(self._number, subnet.sequence_id, (), [])  # an unused pass
        if partition not in self._stages:
            there: list[int] = [*map(partition.stage_of, range(partition.num_blocks))]
            self._stages[partition] = there + there[::-1] if trained else there
        chain = [self._stream.costs.of(*place) for place in enumerate(subnet.chain)]
        durations = [cost.forward_ns for cost in chain]
        later = 0 if self._defers_writes else 1  # owed work follows the backward immediately
        for cost in reversed(chain) if trained else ():
            durations.append(cost.backward_ns + later * cost.owed_ns)
        return Way(self._number, subnet.sequence_id, self._stages[partition], durations)

    def _follow_writers(self, way: Way, layer: LayerId, step: int) -> None:
        """Let a forward wait for the backwards of the step whose WRITE it reads."""
        newest = rule_of(self._stream.rules, layer).last_read(step)
        known = reversed(self._writers.get(layer, ()))
        writers = next((ways for number, ways in known if number <= newest), ())
        for writer in writers:
            if writer.stages:
                end = len(writer.stages) - 1
                place = end if self._steps.is_gated else end - layer.block
                way.earlier.append((layer.block, writer, writer.written.get(place, place)))

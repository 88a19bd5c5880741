"""What blocks could gain if they ran on any stage that is free: a list schedule of whole streams.

No access has a stage of its own. Whenever a stage is free, it takes the access whose longest
remaining chain of causes is the longest. It knows the whole stream, as no run does. So this is
about what placement at run time could reach at best. It may also charge for layers that move, and
rather take what it has the layer of.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise

from naspipe.config.ids import AccessKind, LayerId
from naspipe.config.rules import Frozen, rule_of
from naspipe.plan.chains import Stream
from naspipe.plan.virtual_costs import Costs

WARM_UP_SHARE = 10
"""The bubble leaves out the first 1 in 10 subnets, as that of a run does."""


@dataclass(slots=True, eq=False)
class Access:
    """A forward, a backward or a WRITE of a layer."""

    layer: LayerId
    kind: AccessKind
    subnet: int
    took_ns: int
    unmet: int = 0
    then: list[Access] = field(default_factory=list)
    """What waits for it."""
    level: int = 0
    """The longest chain from its begin to the end of all."""

    def before(self, other: Access) -> None:
        """Another one waits for this."""
        self.then.append(other)
        other.unmet += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was seen."""

    bubble: float
    moved: float
    """Of the forwards and backwards, how many found their layer's version on another stage."""


def accesses_of(stream: Stream, costs: Costs) -> list[list[Access]]:
    """Those of each subnet, each list in an order that causes go along."""
    users: dict[LayerId, list[tuple[int, Access]]] = defaultdict(list)
    return [_subnet(stream, number, costs, users) for number in range(len(stream.subnets))]


def _subnet(
    stream: Stream, number: int, costs: Costs, users: dict[LayerId, list[tuple[int, Access]]]
) -> list[Access]:
    layers = [stream.subnets[number].layer(block) for block in range(len(stream.chain.rules))]
    forward, backward, write = (
        [Access(layer, kind, number, costs.access_ns(layer, kind, number)) for layer in layers]
        for kind in AccessKind
    )
    way = [*forward, *reversed(backward)]
    for one, other in pairwise(way):
        one.before(other)
    writes = []
    for layer, read, last, written in zip(layers, forward, backward, write, strict=True):
        rule = rule_of(stream.chain.rules, layer)
        if isinstance(rule, Frozen):
            continue
        earlier, newest = users[layer], rule.last_read(number)
        if seen := [each for step, each in earlier if step <= newest][-1:]:
            seen[0].before(read)
        if earlier:
            earlier[-1][1].before(written)
        last.before(written)
        earlier.append((number, written))
        writes.append(written)
    return [*way, *writes]


def set_levels(subnets: Sequence[Sequence[Access]]) -> None:
    """From the end to the beginning; a WRITE comes behind its backward in each list."""
    for own in reversed(subnets):
        writes = [each for each in own if each.kind is AccessKind.WRITE]
        rest = [each for each in own if each.kind is not AccessKind.WRITE]
        for each in (*writes, *reversed(rest)):
            each.level = each.took_ns + max((other.level for other in each.then), default=0)


@dataclass(slots=True)
class FreeStages:
    """Carries streams out, on as many stages.

    Args:
        streams: accesses of each, by subnet.
        num_stages: which are all alike.
        window: subnets of a stream that are under way at most.
        copy_ns: what a stage waits for a layer that it has not.
        looks_at: of so many accesses that are ready, the first is taken whose layer is on a stage
            that is free; where there is none, the first.
    """

    streams: Sequence[Sequence[Sequence[Access]]]
    num_stages: int
    window: int
    copy_ns: Callable[[LayerId], int] = lambda layer: 0
    looks_at: int = 1
    _now: int = 0
    _ready: list[tuple[int, int, int, Access]] = field(default_factory=list)
    _offers: Iterator[int] = field(default_factory=count)
    _running: list[tuple[int, int, Access]] = field(default_factory=list)
    _where: dict[LayerId, set[int]] = field(default_factory=dict)
    """Stages that have a layer's newest version."""
    _last: dict[tuple[int, int], int] = field(default_factory=dict)
    """Where a subnet was computed last."""
    _spans: list[tuple[int, int, int, Access]] = field(default_factory=list)
    """Stage, begin and end of every access."""
    _open: list[set[int]] = field(default_factory=list)
    _left: list[list[int]] = field(default_factory=list)
    _admitted: list[int] = field(default_factory=list)
    _moved: int = 0

    def run(self) -> Outcome:
        """To the end."""
        self._left = [[len(own) for own in stream] for stream in self.streams]
        self._admitted, self._open = [0] * len(self.streams), [set() for _ in self.streams]
        for number in range(len(self.streams)):
            self._admit(number)
        free = list(range(self.num_stages))
        self._dispatch(free)
        while self._running:
            self._now = self._running[0][0]
            while self._running and self._running[0][0] == self._now:
                _, stage, access = heapq.heappop(self._running)
                free.append(stage)
                self._finish(stage, access)
            self._dispatch(free)
        return Outcome(bubble=self._bubble(), moved=self._moved / max(1, len(self._spans)))

    def _admit(self, number: int) -> None:
        stream, under_way = self.streams[number], self._open[number]
        oldest = min(under_way, default=self._admitted[number])
        while self._admitted[number] < min(len(stream), oldest + self.window):
            own = self._admitted[number]
            self._admitted[number] += 1
            under_way.add(own)
            if not stream[own][0].unmet:
                self._offer(stream[own][0])

    def _offer(self, access: Access) -> None:
        """Of equal levels, older subnets first; of equal subnets, what was offered first."""
        if access.subnet < self._admitted[access.layer.stream]:
            key = (-access.level, access.subnet, next(self._offers), access)
            heapq.heappush(self._ready, key)

    def _dispatch(self, free: list[int]) -> None:
        while self._ready and (free or not self._ready[0][3].took_ns):
            access = self._take(free)
            if not access.took_ns:  # a WRITE that takes no time needs no stage
                self._finish(self._last[access.layer.stream, access.subnet], access)
                continue
            stage = self._choose(access, free)
            free.remove(stage)
            begin = self._now + self._fetch(access, stage)
            end = begin + access.took_ns
            self._spans.append((stage, begin, end, access))
            heapq.heappush(self._running, (end, stage, access))

    def _take(self, free: Sequence[int]) -> Access:
        most = min(self.looks_at, len(self._ready)) if free else 1
        looked_at = [heapq.heappop(self._ready) for _ in range(most)]
        taken = next((each for each in looked_at if self._is_at_hand(each[3], free)), looked_at[0])
        for each in looked_at:
            if each is not taken:
                heapq.heappush(self._ready, each)
        return taken[3]

    def _is_at_hand(self, access: Access, free: Sequence[int]) -> bool:
        there = self._where.get(access.layer)
        return not access.took_ns or there is None or not there.isdisjoint(free)

    def _choose(self, access: Access, free: Sequence[int]) -> int:
        """One that has the layer, or where the subnet was last."""
        there = self._where.get(access.layer, ())
        last = self._last.get((access.layer.stream, access.subnet), -1)
        return min(free, key=lambda stage: (stage not in there, stage != last, stage))

    def _fetch(self, access: Access, stage: int) -> int:
        there = self._where.setdefault(access.layer, {stage})
        if stage in there:
            return 0
        there.add(stage)
        self._moved += 1
        return self.copy_ns(access.layer)

    def _finish(self, stage: int, access: Access) -> None:
        number, subnet = access.layer.stream, access.subnet
        self._last[number, subnet] = stage
        if access.kind is AccessKind.WRITE:
            self._where[access.layer] = {stage}
        for other in access.then:
            other.unmet -= 1
            if not other.unmet:
                self._offer(other)
        self._left[number][subnet] -= 1
        if not self._left[number][subnet]:
            self._open[number].remove(subnet)
            self._admit(number)

    def _bubble(self) -> float:
        since = max(self._warm_up_ends(), default=0)
        end = max(end for _, _, end, _ in self._spans)
        busy = sum(max(0, end - max(begin, since)) for _, begin, end, _ in self._spans)
        return 1 - busy / (self.num_stages * (end - since))

    def _warm_up_ends(self) -> Iterator[int]:
        for number, stream in enumerate(self.streams):
            first = len(stream) // WARM_UP_SHARE
            own = [
                end for _, _, end, access in self._spans
                if access.layer.stream == number and access.subnet < first
            ]  # fmt: skip
            if own:
                yield max(own)

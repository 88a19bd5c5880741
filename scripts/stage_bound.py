"""A lower bound for every schedule of a stream whose subnets are cut: no order ends sooner.

The causal bound (:mod:`naspipe.plan.bounds`) has a device for whoever wants one. Here
each access belongs to its stage. Before an access can begin, all that it depends on is over. What
of that lies on one stage is done there one at a time; each of it begins no sooner than its own
bound, and is followed by the longest path that leads from it to the access. The best that one stage
can do under these three rules alone, and interrupting as it likes, is found exactly (Jackson's
preemptive schedule, as in Carlier 1982), and raises the bound of the access.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from naspipe.config.ids import LayerId, Subnet
from naspipe.config.rules import Exact, Follows, Frozen, rule_of
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.plan.latest_start import CutStream

Item = tuple[int, int, int]
"""No sooner than this, this long, and so much behind it; nanoseconds."""


def step_ends(stream: CutStream, steps: Steps = ONE_PASS, reach: int = 2) -> list[int]:
    """When each step and all before it could be over at the earliest; nanoseconds.

    Args:
        stream: trained subnets, at least one.
        steps: how passes form steps.
        reach: how many steps back an access is looked at together with what it depends on; more
            of them make the bound better and slower.
    """
    graph = _Graph(stream, steps)
    for first in range(0, len(stream.subnets), steps.passes):
        graph.add_step(stream.subnets[first : first + steps.passes], first // steps.passes, reach)
    return list(accumulate(graph.ends, max))


def least_end(items: Sequence[Item]) -> int:
    """When all is over at the earliest, where one thing is done at a time and can be interrupted.

    The one with most behind it goes first: no schedule is better.
    """
    coming = sorted(items, reverse=True)
    ready: list[list[int]] = []
    now = end = 0
    while coming or ready:
        if not ready:
            now = max(now, coming[-1][0])
        while coming and coming[-1][0] <= now:
            _, duration, behind = coming.pop()
            heapq.heappush(ready, [-behind, duration])
        first = ready[0]
        until = now + first[1]
        if coming and coming[-1][0] < until:
            first[1] -= coming[-1][0] - now
            now = coming[-1][0]
            continue
        heapq.heappop(ready)
        now = until
        end = max(end, now - first[0])
    return end


@dataclass(slots=True)
class _Graph:
    """Accesses in an order in which each comes behind those that it depends on."""

    stream: CutStream
    steps: Steps
    ends: list[int] = field(default_factory=list)
    """Of each step."""
    _after: list[list[int]] = field(default_factory=list)
    """What an access depends on, by its number."""
    _durations: list[int] = field(default_factory=list)
    _stages: list[int] = field(default_factory=list)
    _heads: list[int] = field(default_factory=list)
    """When each could begin at the earliest."""
    _firsts: list[int] = field(default_factory=list)
    """The number of each step's first access."""
    _written: dict[LayerId, list[tuple[int, int]]] = field(default_factory=dict)
    """By layer, the steps that WRITE it and the number of the WRITE."""

    def add_step(self, subnets: Sequence[Subnet], step: int, reach: int) -> None:
        """The accesses of a step, and their bounds."""
        first = len(self._after)
        self._firsts.append(first)
        passed: dict[LayerId, int] = {}
        backwards: dict[LayerId, list[int]] = defaultdict(list)
        last: list[int] = []
        for subnet in subnets:
            last.append(self._add_pass(subnet, step, passed, backwards))
        for layer, own in backwards.items():
            rule = rule_of(self.stream.rules, layer)
            if isinstance(rule, Frozen | Follows):
                continue
            cost = self.stream.costs.of(layer.block, layer.candidate)
            after = last if self.steps.is_gated else own
            number = self._add(cost.write_ns, self._stages[own[-1]], list(after))
            self._written.setdefault(layer, []).append((step, number))
        lowest = self._firsts[max(0, step - reach)]
        for number in range(first, len(self._after)):
            self._bound(number, lowest)
        nodes = range(first, len(self._after))
        self.ends.append(max(self._heads[node] + self._durations[node] for node in nodes))

    def _add_pass(
        self,
        subnet: Subnet,
        step: int,
        passed: dict[LayerId, int],
        backwards: dict[LayerId, list[int]],
    ) -> int:
        """Returns the number of its last backward."""
        partition = self.stream.partitions[subnet.sequence_id]
        before: list[int] = []
        blocks = range(len(self.stream.rules))
        for block in blocks:
            layer = subnet.layer(block)
            after = [*before, *self._read(layer, step)]
            if layer in passed and self._is_ordered(layer):
                after.append(passed[layer])
            cost = self.stream.costs.of(block, subnet.chain[block])
            passed[layer] = self._add(cost.forward_ns, partition.stage_of(block), after)
            before = [passed[layer]]
        for block in reversed(blocks):
            layer = subnet.layer(block)
            cost = self.stream.costs.of(block, subnet.chain[block])
            stage = partition.stage_of(block)
            before = [self._add(cost.backward_ns, stage, before)]
            owed = [self._add(cost.owed_ns, stage, list(before))] if cost.owed_ns else before
            backwards[layer] += owed
        return before[0]

    def _add(self, duration_ns: int, stage: int, after: list[int]) -> int:
        self._durations.append(duration_ns)
        self._stages.append(stage)
        self._after.append(after)
        self._heads.append(0)
        return len(self._after) - 1

    def _read(self, layer: LayerId, step: int) -> list[int]:
        """The WRITE whose version a step reads, if any."""
        latest = rule_of(self.stream.rules, layer).last_read(step)
        found = (node for of, node in reversed(self._written.get(layer, ())) if of <= latest)
        return [node] if (node := next(found, None)) is not None else []

    def _is_ordered(self, layer: LayerId) -> bool:
        is_exact = isinstance(rule_of(self.stream.rules, layer), Exact)
        return is_exact and (self.stream.ordered is None or layer in self.stream.ordered)

    def _bound(self, number: int, lowest: int) -> None:
        """When an access could begin at the earliest, from those that it depends on."""
        after, heads, durations = self._after[number], self._heads, self._durations
        head = max((heads[each] + durations[each] for each in after), default=0)
        is_simple = len(after) == 1 and self._stages[after[0]] == self._stages[number]
        if after and not is_simple:
            on_stages = self._leading_to(number, lowest)
            head = max(head, *(least_end(items) for items in on_stages.values()))
        heads[number] = head

    def _leading_to(self, number: int, lowest: int) -> dict[int, list[Item]]:
        """What an access depends on, from a number on, by stage."""
        behind = dict.fromkeys(self._after[number], 0)
        open_nodes = [-each for each in behind]
        heapq.heapify(open_nodes)
        found: dict[int, list[Item]] = defaultdict(list)
        while open_nodes:
            node = -heapq.heappop(open_nodes)
            duration = self._durations[node]
            found[self._stages[node]].append((self._heads[node], duration, behind[node]))
            length = behind[node] + duration
            for each in self._after[node] if node >= lowest else ():
                if each not in behind:
                    heapq.heappush(open_nodes, -each)
                    behind[each] = length
                elif behind[each] < length:
                    behind[each] = length
        return found

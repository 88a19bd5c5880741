"""The predictor: which layers a stage will use next, the most urgent first.

It runs the scheduler ahead (NASPipe, section 3.2, Algorithm 3): on the queued work, on what the
running task will pass on, and on what the neighbours will send, according to their announcements or
to the causal order (``Conflicts``). It never changes the schedule, only what is loaded ahead of its
use. The result is a ``Forecast``, which is computed lazily.
"""

from __future__ import annotations

from collections.abc import (
    Collection,
    Container,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from itertools import chain, zip_longest
from typing import Any

from naspipe.config.ids import LayerId, SequenceId, StreamId, Subnet
from naspipe.config.rules import BlockRule, Exact, rule_of
from naspipe.config.wiring import CHAIN
from naspipe.engine.events import Task, TaskKind
from naspipe.engine.ports import DispatchOrder
from naspipe.engine.work import Progress, Work

_Key = tuple[StreamId, SequenceId]


class Conflicts:
    """The subnets under way on a stage, and those that they wait for on other stages.

    Args:
        rules: for each stream, the rule of each block of its chain; only ``exact`` layers make
            subnets wait here.
    """

    def __init__(self, rules: Sequence[Sequence[BlockRule]]) -> None:
        self._rules = rules
        self._users: dict[LayerId, _Key] = {}
        self.before, self.behind = _Waits(), _Waits()
        """Which subnets wait for which on the stages before this one, and on those after it."""

    def admit(self, subnet: Subnet, here: range) -> None:
        """Record which subnets this one waits for outside of the blocks that it has on this stage.

        Must be called in sequence order without gaps.
        """
        before: set[_Key] = set()
        behind: set[_Key] = set()
        key = (subnet.stream, subnet.sequence_id)
        rules = self._rules[subnet.stream]
        for block in range(len(subnet.chain)):
            layer = subnet.layer(block)
            if not isinstance(rule_of(rules, layer), Exact):
                continue
            user = self._users.get(layer)
            self._users[layer] = key
            if user is not None and block < here.start:
                before.add(user)
            elif user is not None and block >= here.stop:
                behind.add(user)
        self.before.admit(key, before)
        self.behind.admit(key, behind)

    def come_back(self, stream: StreamId, sequence_id: SequenceId) -> None:
        """Record that a subnet's backward arrived: the later stages have finished with it."""
        self.behind.end((stream, sequence_id))

    def retire(self, stream: StreamId, sequence_id: SequenceId) -> None:
        """Record that this stage has finished a subnet; earlier stages should follow soon."""
        self.behind.end((stream, sequence_id))
        self.before.end((stream, sequence_id))


class _Waits:
    """Which subnets wait for which, on one side of a stage."""

    def __init__(self) -> None:
        self._followers: dict[_Key, list[_Key]] = {}
        self._counts: dict[_Key, int] = {}
        """The number of others that a subnet waits for; subnets that wait for none are not
        listed."""

    def admit(self, subnet: _Key, others: Iterable[_Key]) -> None:
        pending = [other for other in others if other in self._followers]
        for other in pending:
            self._followers[other].append(subnet)
        if pending:
            self._counts[subnet] = len(pending)
        self._followers[subnet] = []

    def end(self, subnet: _Key) -> None:
        """Release the subnets that wait for this one; calling it again has no effect."""
        for follower in self._followers.pop(subnet, ()):
            self._counts[follower] -= 1
            if not self._counts[follower]:
                del self._counts[follower]

    def is_waiting(self, subnet: _Key) -> bool:
        return subnet in self._counts


class Drawn:
    """The distinct layers of an iterator's lists, cached for all readers.

    Args:
        source: lists without repeats within each; may be lazy or endless, and lists may overlap.
    """

    __slots__ = ("_layers", "_places", "_source")

    def __init__(self, source: Iterable[Sequence[LayerId]] = ()) -> None:
        self._source = iter(source)
        self._layers: list[LayerId] = []
        self._places: dict[LayerId, int] = {}

    def __iter__(self) -> Iterator[LayerId]:
        """Yield all layers from the first one on, whatever else was drawn meanwhile."""
        layers, place = self._layers, 0
        while place < len(layers) or self._draw(place + 1):
            yield layers[place]
            place += 1

    def places(self, wanted: Set[LayerId], reach: int) -> Mapping[LayerId, int]:
        """Return the positions of layers, including all wanted ones among the first ``reach``."""
        if wanted - self._places.keys():
            self._draw(reach)
        return self._places

    def _draw(self, count: int) -> bool:
        layers, places = self._layers, self._places
        while len(layers) < count:
            drawn = next(self._source, None)
            if drawn is None:
                return False
            new = [layer for layer in drawn if layer not in places]
            places.update(zip(new, range(len(layers), len(layers) + len(new)), strict=True))
            layers += new
        return True


class Forecast:
    """Layers in the order of their next use.

    Args:
        first: the layers that are used first; drawn immediately.
        then: the layers that follow; drawn lazily and kept by the caller.
        needed: all layers that may follow.
    """

    __slots__ = ("_first", "_needed", "_then")

    def __init__(self, first: Iterable[LayerId], then: Drawn, needed: Container[LayerId]) -> None:
        self._first = dict.fromkeys(first)
        self._then = then
        self._needed = needed

    def __iter__(self) -> Iterator[LayerId]:
        """Yield each layer once, at its first position."""
        first = self._first
        yield from first
        for layer in self._then:
            if layer not in first:
                yield layer

    def may_use(self, layer: LayerId) -> bool:
        """Return True if the layer is used first or may follow; nothing is drawn to find out."""
        return layer in self._needed or layer in self._first

    def next_uses(self, layers: Collection[LayerId], reach: int) -> dict[LayerId, int]:
        """Return how far ahead each of these layers is used; 0 is the very next.

        Layers that are ``reach`` or more ahead, or not mentioned, are left out.
        """
        first = {layer: place for place, layer in enumerate(self._first)}
        found = {layer: first[layer] for layer in layers if layer in first}
        if len(found) < len(layers):
            begin = len(first)
            then = self._then.places(set(layers) - found.keys(), reach - begin)
            for layer in layers:
                if layer in then and layer not in found:
                    found[layer] = begin + then[layer]
        return {layer: place for layer, place in found.items() if place < reach}


_HEAD = 3
"""Number of a task's layers that should be loaded when it begins; the others load while it runs."""
_LIKELY = 2
"""Number of tasks of each direction among which the next input is very likely to be: all but 1 in
100 backwards and 1 in 20 forwards, simulated for ``nlp.c1`` on 4 stages."""
_REMEMBERED = 64
"""Number of announcements that are kept; an announced task usually arrives soon."""

_Ranked = list[tuple[tuple[Any, ...], Work]]


class Predictor:
    """Follows the events of a stage, and lists the layers that it is likely to use."""

    def __init__(self, rules: Sequence[Sequence[BlockRule]], order: DispatchOrder) -> None:
        self._order = order
        self._announced: dict[Task, None] = {}
        """Announced tasks, in order. A task may be announced after its input arrived, so the oldest
        are discarded."""
        self._conflicts = Conflicts(rules)
        self._others = Drawn()
        """The layers of all tasks except the running one."""
        self._known: tuple[Hashable, Work | None] = (None, None)
        """The token and the running task for which ``_others`` is valid."""
        self._needed: dict[LayerId, int] = {}
        """The number of subnets under way that still have a block to run on each layer."""

    def admit(self, progress: Progress) -> None:
        here = progress.partition.blocks(progress.forward.task.stage)
        self._conflicts.admit(progress.subnet, here)
        for ticket in progress.tickets.values():
            self._needed[ticket.layer] = self._needed.get(ticket.layer, 0) + 1

    def arrive(self, task: Task, upcoming: Iterable[Task]) -> None:
        """Record that the input of a task arrived; its sender expects to send ``upcoming`` next."""
        self._announced.pop(task, None)
        self._announced.update(dict.fromkeys(upcoming))
        while len(self._announced) > _REMEMBERED:
            del self._announced[next(iter(self._announced))]
        if task.kind is TaskKind.BACKWARD:
            self._conflicts.come_back(task.stream, task.sequence_id)

    def used(self, layer: LayerId) -> None:
        """Record that a subnet ran its last block on the layer."""
        self._needed[layer] -= 1
        if not self._needed[layer]:
            del self._needed[layer]

    def retire(self, progress: Progress) -> None:
        self._conflicts.retire(progress.subnet.stream, progress.subnet.sequence_id)

    def forecast(
        self,
        due: Iterable[LayerId],
        subnets: Iterable[Progress],
        running: Work | None,
        token: Hashable = None,
    ) -> Forecast:
        """Return layers in the likely order of their use, beginning with those that are ``due``.

        Only versions that exist here are named: others cannot be loaded yet. The running task and
        the next task, as far as the stage knows it, are listed completely. Which input arrives
        first is not known, so the likely tasks follow with their first layers, and only then
        completely. The subnets must be in the order of their admission. The ``token`` differs
        whenever any task was queued, sent, begun or finished since; None if that is not known.
        """
        token_before, running_before = self._known
        if token is None or token != token_before or running is not running_before:
            self._known = (token, running)
            self._others = Drawn(self._forecast_others(subnets, running))
        runs = running.clear_layers() if running is not None else ()
        return Forecast(chain(due, runs), self._others, self._needed)

    def _forecast_others(
        self, subnets: Iterable[Progress], running: Work | None
    ) -> Iterator[list[LayerId]]:
        queued, returning, coming, unclear = self._rank(subnets, running)
        for work in queued[:1]:
            yield work.clear_layers()
        for work in _in_turn(returning[:_LIKELY], coming[:_LIKELY]):
            yield work.clear_layers()[:_HEAD]
        for work in _in_turn(returning, coming, queued[1:], unclear):
            yield work.clear_layers()

    def _rank(self, subnets: Iterable[Progress], running: Work | None) -> list[list[Work]]:
        """Return the other tasks in four groups, the soonest of each group first.

        The groups are: tasks that are queued, or will be when the running task ends; backwards
        whose input has not arrived; forwards whose input has not arrived; and tasks that wait for a
        WRITE. In the second and third group, tasks announced by a neighbour come first, then
        subnets that wait for no other one, oldest first, because a pipeline passes subnets on in
        sequence order except for those that have to wait.
        """
        queued: _Ranked = []
        unclear: _Ranked = []
        returning: _Ranked = []
        coming: _Ranked = []
        announced, conflicts, order_key = self._announced, self._conflicts, self._order.key
        for progress in subnets:
            forward = progress.forward
            if forward.is_queued:
                queued.append((order_key(forward.task, forward.priority), forward))
            elif forward.todo and forward is not running:
                task = forward.task
                if CHAIN not in forward.missing:
                    unclear.append((order_key(task, forward.priority), forward))
                else:
                    waits = conflicts.before.is_waiting(task[:2])
                    coming.append(((task not in announced, waits), forward))
            for backward in progress.backwards.values():
                task = backward.task
                if backward.is_queued or (forward is running and backward.begins_here):
                    queued.append((order_key(task, backward.priority), backward))
                elif not forward.todo and CHAIN in backward.missing:
                    waits = conflicts.behind.is_waiting(task[:2])
                    returning.append(((task not in announced, waits), backward))
        return [
            [work for _, work in sorted(ranked, key=lambda pair: pair[0])]
            for ranked in (queued, returning, coming, unclear)
        ]


def _in_turn(*groups: Sequence[Work]) -> Iterator[Work]:
    """Yield the first of each group, then the second of each, and so on."""
    for rank in zip_longest(*groups):
        for work in rank:
            if work is not None:
                yield work

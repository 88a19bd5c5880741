"""WRITEs that are owed: each follows the one before it, when nothing is in its way.

``Writes`` puts the WRITEs of a stage in order. ``Followers`` makes layers that follow others, as
those of a momentum teacher do, take turns with their sources.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from naspipe.config.errors import InvariantError
from naspipe.config.ids import INITIAL, AccessKind, LayerId, StreamId, Version
from naspipe.config.rules import BlockRule, Follows, Rule, rule_with_state
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.engine.commands import Command, DropVersion, JoinSum, WriteLayer
from naspipe.engine.events import TaskKind, WriteFinished
from naspipe.engine.gates import Gates
from naspipe.engine.history import Moves
from naspipe.engine.ports import DispatchOrder
from naspipe.engine.residency import Residency
from naspipe.engine.versions import Ticket, VersionBook
from naspipe.engine.work import Progress

_Place = tuple[StreamId, int]


class Followers:
    """The sources and followers among the layers of one stage.

    ``ended`` tells the last step whose WRITEs of a layer are all over on this stage.
    """

    def __init__(
        self,
        rules: Sequence[Sequence[BlockRule]],
        ended: Callable[[LayerId], int],
        steps: Steps = ONE_PASS,
    ) -> None:
        self._ended = ended
        self._step = steps.step
        self._sources: dict[_Place, _Place] = {}
        self._followers: dict[_Place, list[_Place]] = {}
        self._written: dict[LayerId, Version] = {}
        """The last step of each source that was written here."""
        for place, rule in _places(rules):
            if isinstance(rule, Follows):
                source = (StreamId(rule.stream), rule.block)
                self._sources[place] = source
                self._followers.setdefault(source, []).append(place)

    def may_end_step(self, layer: LayerId, version: Version) -> bool:
        """Whether no source or follower is in the way of the WRITE that ends a step."""
        if not self._sources:
            return True
        place = (layer.stream, layer.block)
        if place in self._sources:
            source = LayerId(*self._sources[place], layer.candidate)
            return self._step(self._written.get(source, INITIAL)) == self._step(version)
        needed = self._step(self._written.get(layer, INITIAL))
        return all(self._ended(each) >= needed for each in self._of(layer))

    def wrote(self, layer: LayerId, version: Version) -> list[LayerId]:
        """A step was written; returns the layers whose WRITEs may have waited for that."""
        if not self._sources:
            return []
        place = (layer.stream, layer.block)
        if place in self._sources:
            return [LayerId(*self._sources[place], layer.candidate)]
        if place in self._followers:
            self._written[layer] = version
        return self._of(layer)

    def _of(self, layer: LayerId) -> list[LayerId]:
        places = self._followers.get((layer.stream, layer.block), ())
        return [LayerId(*place, layer.candidate) for place in places]


def _places(rules: Sequence[Sequence[BlockRule]]) -> Iterable[tuple[_Place, Rule]]:
    for stream, chain in enumerate(rules):
        for block, rule in enumerate(chain):
            yield (StreamId(stream), block), rule_with_state(rule)


MOST_DUE = 64
"""No more WRITEs wait for their turn, as each keeps a gradient: those of two or three subnets on a
stage of 26 blocks. More gain nothing there; 32 cost two stages of ``nlp.c3`` 1 % of the time."""
MOST_OWED = 256
"""The same with split backwards. Then a WRITE keeps what autograd saved for a pass that counts as
under way, so ``window`` bounds it as well. Simulated, two stages of ``nlp.c3``: 64 cost 3 % of the
time, 128 cost 1 %."""


class Writes:
    """Puts the WRITEs of one stage in order; a layer is pinned only while it is written.

    Where another stage computes earlier passes of a step, their gradients come first, as a sum. In
    a tree they are added whenever they come, before the sum leaves or the step ends.

    If backwards may be split (``splits``), a WRITE may take as long as a backward, so one begins
    at a time, and tasks that become ready go before the next one.
    """

    def __init__(
        self,
        book: VersionBook,
        residency: Residency,
        gates: Gates,
        steps: Steps,
        order: DispatchOrder,
        splits: bool = False,
    ) -> None:
        self._book = book
        self._steps = steps
        self._followers = Followers(book.rules, self._ended, steps)
        self._residency = residency
        self._gates = gates
        self._bases: dict[tuple[LayerId, Version], Version | None] = {}
        """For each sum that will come, the version from before its step; None in a tree."""
        self._lacking: dict[LayerId, set[Version]] = {}
        self._instead: dict[tuple[LayerId, Version], Version] = {}
        """What this stage's first WRITE of a step follows, instead of what its ticket says."""
        self._sums: dict[LayerId, deque[Version]] = {}
        """Sums that came and were not joined yet, in their order."""
        self._owed: dict[tuple[LayerId, Version], tuple[Progress, int]] = {}
        """By layer and the version that the WRITE follows."""
        self._due: dict[LayerId, tuple[Progress, int]] = {}
        """They wait only for a run to end, or for their layer to be on the device."""
        self._queue: list[tuple[tuple[Any, ...], int, LayerId]] = []
        self._order, self._counter = order, count()
        self._splits, self._most_due = splits, MOST_OWED if splits else MOST_DUE
        self._num_under_way = 0

    @property
    def are_under_way(self) -> bool:
        return self._num_under_way > 0

    @property
    def are_due(self) -> bool:
        """Whether any waits for nothing but its turn, or for its layer to be on the device."""
        return bool(self._due)

    @property
    def due(self) -> Iterator[LayerId]:
        """Layers that have to be loaded for their WRITE."""
        return iter(self._due)

    def expect(self, moves: Moves) -> list[Command]:
        """Sums will come, or came already; returns what the latter lead to."""
        for before in moves.preceded:
            if before.base is not None:
                self._instead[before.layer, before.version] = before.base
        for each in moves.sums:
            self._bases[each.layer, each.version] = each.base
            if each.base is None:
                self._lacking.setdefault(each.layer, set()).add(each.version)
        came = [each.layer for each in moves.sums if each.layer in self._sums]
        return [command for layer in came for command in self.follow(layer)]

    def lacks_sum(self, layer: LayerId, version: Version) -> bool:
        """Whether gradients of passes before ``version`` have still to be joined."""
        return any(each < version for each in self._lacking.get(layer, ()))

    def arrive(self, layer: LayerId, version: Version) -> None:
        """A sum of gradients up to a pass is here; :meth:`follow` says what it leads to."""
        self._sums.setdefault(layer, deque()).append(version)

    def owe(self, progress: Progress, block: int) -> list[Command]:
        """The gradient of a block is there; returns what comes before its WRITE."""
        ticket = self._book.queue_write(progress.tickets[block], progress.subnet.sequence_id)
        if (base := self._instead.pop((ticket.layer, ticket.base), None)) is not None:
            ticket = ticket._replace(base=base)
        progress.tickets[block] = ticket
        self._owed[ticket.layer, ticket.base] = (progress, block)
        return self.follow(ticket.layer)

    def follow(self, layer: LayerId) -> list[Command]:
        """A layer was written, a reader is done with it, or a sum came: its next WRITE may be due.

        Returns the joins of sums that come before it.
        """
        joined = self._join(layer) if layer in self._sums else []
        key = (layer, self._book.newest(layer))
        if key not in self._owed or not self._book.may_replace(layer):
            return joined
        progress, _ = self._owed[key]
        version = Version(progress.subnet.sequence_id)
        if self._book.ends_step(layer, version) and not (
            not progress.holds
            and self._followers.may_end_step(layer, version)
            and not self.lacks_sum(layer, version)
        ):
            return joined
        _, block = self._due[layer] = self._owed.pop(key)
        heapq.heappush(self._queue, (self._key(progress, block), next(self._counter), layer))
        return joined

    def _key(self, progress: Progress, block: int) -> tuple[Any, ...]:
        if self._residency.limits_memory or not progress.write_priorities:
            return ()  # with a budget a gradient is used up before the next one is made
        task = progress.forward.task._replace(kind=TaskKind.BACKWARD)
        return self._order.key(task, progress.write_priorities[block])

    def wrote(self, layer: LayerId, version: Version) -> list[Command]:
        """A layer was written: the next WRITEs of it and of its kin may be due; returns as
        ``follow``."""
        has_ended = self._book.ends_step(layer, version)
        kin = self._followers.wrote(layer, version) if has_ended else []
        # Update the followers first. With bounded staleness, the next WRITE of a source may
        # already be owed, and it has to wait for the follower's WRITE of this step.
        return [command for each in (layer, *kin) for command in self.follow(each)]

    def _ended(self, layer: LayerId) -> int:
        """The last step of a layer whose WRITEs are all over.

        A WRITE of one of the step's first passes only adds a gradient, but makes a version, too.
        """
        newest = self._book.newest(layer)
        return self._steps.step(newest) - (not self._book.ends_step(layer, newest))

    def _join(self, layer: LayerId) -> list[Command]:
        """Let sums, the oldest first, be joined by this stage's own gradients, when it is time."""
        versions, commands = self._sums[layer], list[Command]()
        while versions and (layer, versions[0]) in self._bases:
            version, book = versions[0], self._book
            base = self._bases[layer, version]
            if base is None:
                self._lacking[layer].remove(version)
                commands.append(JoinSum(layer, version))
            else:
                keeps_base = book.has_copies(layer) and book.keeps(layer, base)
                dropped = book.join(layer, base, version)
                if dropped is None:
                    break
                commands.append(JoinSum(layer, version, base, keeps_base))
                commands += [DropVersion(layer, each) for each in dropped if each != base]
            versions.popleft()
            del self._bases[layer, version]
            commands += self._gates.joined(layer, version)
        if not versions:
            del self._sums[layer]
        return commands

    def release(self, progress: Progress) -> list[Command]:
        layers = [ticket.layer for ticket in progress.tickets.values() if ticket.is_writer]
        return [command for layer in layers for command in self.follow(layer)]

    def begin(self, other: tuple[Any, ...] | None) -> list[Command]:
        """The WRITEs that are due, whose layers are on the device, and whose turn it is.

        Those without a priority go first, and all at once. Others begin one by one where no task is
        ready or backwards are split, so that one that comes meanwhile has not long to wait.

        Args:
            other: the key of the task that would run next; None where none is ready.
        """
        commands: list[Command] = []
        absent = []
        are_under_way = self.are_under_way
        while self._queue:
            key, _, layer = self._queue[0]
            takes_turns = self._splits or other is None
            is_behind = (takes_turns and bool(commands)) or (other is not None and other < key)
            if key and (are_under_way or (is_behind and len(self._queue) <= self._most_due)):
                break
            first = heapq.heappop(self._queue)
            progress, block = self._due[layer]
            sequence_id, book = progress.subnet.sequence_id, self._book
            ends_step = book.ends_step(layer, Version(sequence_id))
            needs_layer = ends_step or book.has_copies(layer)
            if needs_layer and not self._residency.acquire((layer,)):
                absent.append(first)
                continue
            del self._due[layer]
            base = progress.tickets[block].base
            self._num_under_way += 1
            progress.writing.add(block)
            keeps_base = book.has_copies(layer) and book.keeps(layer, base)
            commands.append(WriteLayer(layer, sequence_id, base, keeps_base, ends_step))
        for each in absent:
            heapq.heappush(self._queue, each)
        return commands

    def finish(self, event: WriteFinished, progress: Progress) -> Ticket:
        layer = event.layer
        # Whether the WRITE changed or copied the layer; others only add gradients up.
        ends_step = self._book.ends_step(layer, Version(event.sequence_id))
        needs_layer = ends_step or self._book.has_copies(layer)
        ticket = progress.tickets.get(layer.block)
        if ticket is None or ticket.layer != layer or layer.block not in progress.writing:
            raise InvariantError(
                f"layer {layer}: WRITE {event.sequence_id} finished, but was not under way"
            )
        progress.writing.remove(layer.block)
        self._num_under_way -= 1
        if needs_layer:
            self._residency.release(layer, AccessKind.WRITE)
        return ticket

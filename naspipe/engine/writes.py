"""Owed WRITEs: each is applied after the previous one of its layer, as soon as nothing blocks it.

``Writes`` orders the WRITEs of a stage. ``Followers`` makes layers that follow others, such as
those of a momentum teacher, alternate with their sources.
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

    ``ended`` returns the last step for which all WRITEs of a layer have finished on this stage.
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
        """Return True if no source or follower blocks the WRITE that ends a step."""
        if not self._sources:
            return True
        place = (layer.stream, layer.block)
        if place in self._sources:
            source = LayerId(*self._sources[place], layer.candidate)
            return self._step(self._written.get(source, INITIAL)) == self._step(version)
        needed = self._step(self._written.get(layer, INITIAL))
        return all(self._ended(each) >= needed for each in self._of(layer))

    def wrote(self, layer: LayerId, version: Version) -> list[LayerId]:
        """Record that a step was written; returns the layers whose WRITEs may be unblocked."""
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
"""Maximum number of WRITEs that wait for their turn. Each keeps a gradient; 64 are those of two or
three subnets on a stage of 26 blocks. A higher limit gains nothing there; 32 cost two stages of
``nlp.c3`` 1 % of the time."""
MOST_OWED = 256
"""The same limit with split backwards. Such a WRITE also keeps the tensors that autograd saved for
a pass that counts as under way, so ``window`` bounds it as well. Simulated, two stages of
``nlp.c3``: 64 cost 3 % of the time, 128 cost 1 %."""


class Writes:
    """Orders the WRITEs of one stage; a layer is pinned only while it is written.

    If another stage computes earlier passes of a step, their gradients are added first, as a sum.
    In a tree they are added whenever they arrive, before this stage's sum is sent or the step ends.

    If backwards may be split (``splits``), a WRITE may take as long as a backward, so only one is
    begun at a time, and tasks that become ready precede the next one.
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
        """For each sum that will arrive, the version from before its step; None in a tree."""
        self._lacking: dict[LayerId, set[Version]] = {}
        self._instead: dict[tuple[LayerId, Version], Version] = {}
        """The version that this stage's first WRITE of a step follows, overriding its ticket."""
        self._sums: dict[LayerId, deque[Version]] = {}
        """Sums that arrived and were not joined yet, in their order."""
        self._owed: dict[tuple[LayerId, Version], tuple[Progress, int]] = {}
        """Owed WRITEs, by layer and the version that the WRITE follows."""
        self._due: dict[LayerId, tuple[Progress, int]] = {}
        """WRITEs that wait only for a run to end, or for their layer to be on the device."""
        self._queue: list[tuple[tuple[Any, ...], int, LayerId]] = []
        self._order, self._counter = order, count()
        self._splits, self._most_due = splits, MOST_OWED if splits else MOST_DUE
        self._num_under_way = 0

    @property
    def are_under_way(self) -> bool:
        return self._num_under_way > 0

    @property
    def are_due(self) -> bool:
        """True if a WRITE waits only for its turn, or for its layer to be on the device."""
        return bool(self._due)

    @property
    def due(self) -> Iterator[LayerId]:
        """Layers that have to be loaded for their WRITE."""
        return iter(self._due)

    def expect(self, moves: Moves) -> list[Command]:
        """Register expected sums; returns the commands for those that have already arrived."""
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
        """Return True if gradients of passes before ``version`` still have to be joined."""
        return any(each < version for each in self._lacking.get(layer, ()))

    def arrive(self, layer: LayerId, version: Version) -> None:
        """Record a sum of gradients up to a pass; :meth:`follow` returns the resulting commands."""
        self._sums.setdefault(layer, deque()).append(version)

    def owe(self, progress: Progress, block: int) -> list[Command]:
        """Record that a block's gradient is available; returns the commands before its WRITE."""
        ticket = self._book.queue_write(progress.tickets[block], progress.subnet.sequence_id)
        if (base := self._instead.pop((ticket.layer, ticket.base), None)) is not None:
            ticket = ticket._replace(base=base)
        progress.tickets[block] = ticket
        self._owed[ticket.layer, ticket.base] = (progress, block)
        return self.follow(ticket.layer)

    def follow(self, layer: LayerId) -> list[Command]:
        """Check a layer's next WRITE after a WRITE, the end of a read, or the arrival of a sum.

        Returns the joins of sums that precede the WRITE.
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
            return ()  # with a memory budget, each gradient is consumed before the next one is made
        task = progress.forward.task._replace(kind=TaskKind.BACKWARD)
        return self._order.key(task, progress.write_priorities[block])

    def wrote(self, layer: LayerId, version: Version) -> list[Command]:
        """Process a WRITE that has finished: the next WRITEs of the layer and of its sources or
        followers may be due. Returns the same as :meth:`follow`.
        """
        has_ended = self._book.ends_step(layer, version)
        kin = self._followers.wrote(layer, version) if has_ended else []
        # Update the followers first. With bounded staleness, the next WRITE of a source may
        # already be owed, and it has to wait for the follower's WRITE of this step.
        return [command for each in (layer, *kin) for command in self.follow(each)]

    def _ended(self, layer: LayerId) -> int:
        """Return the last step of a layer for which all WRITEs have finished.

        A WRITE of one of the step's first passes only accumulates a gradient but still makes a
        version.
        """
        newest = self._book.newest(layer)
        return self._steps.step(newest) - (not self._book.ends_step(layer, newest))

    def _join(self, layer: LayerId) -> list[Command]:
        """Join sums with this stage's own gradients, the oldest first, as far as possible now."""
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
        """Return the WRITEs that are due, have their layers on the device, and are next in order.

        Those without a priority go first, and all at once. The others begin one by one if no task
        is ready or backwards are split, so that a task that arrives meanwhile does not wait long.

        Args:
            other: the key of the task that would run next; None if none is ready.
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
        # True if the WRITE changed or copied the layer; other WRITEs only accumulate gradients.
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

"""Layer mirroring (NASPipe, section 3.3), and the copies and sums exchanged between groups.

A layer is sent to the stage of its next user; copies of it are sent to readers in other groups, and
the gradients of their passes are returned as sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from naspipe.config.ids import LayerId, StageId, Version
from naspipe.engine.commands import Command, PushVersion
from naspipe.engine.events import BUFFERS, LAYER, SUM, VersionArrived
from naspipe.engine.gates import Gates
from naspipe.engine.history import Departure, Preceded, Whereabouts
from naspipe.engine.inputs import Clearance
from naspipe.engine.residency import Residency
from naspipe.engine.versions import VersionBook
from naspipe.engine.work import Progress, Work
from naspipe.engine.writes import Writes


class Transfers:
    """One stage's part in the moves of layers, copies, sums and buffers.

    A parcel is sent once its version exists and is saved: it is pushed when its version is written
    (buffers: when the forward has finished), or when the users are admitted, whichever is later.
    """

    def __init__(
        self,
        stage: StageId,
        whereabouts: Whereabouts,
        book: VersionBook,
        residency: Residency,
        writes: Writes,
        gates: Gates,
        clearance: Clearance,
    ) -> None:
        self._stage = stage
        self._whereabouts = whereabouts
        self._book = book
        self._residency = residency
        self._writes = writes
        self._gates = gates
        self._clearance = clearance
        self._waiting: dict[LayerId, dict[Version, list[Departure]]] = {}
        self._buffers: dict[tuple[LayerId, Version], Departure] = {}
        self._early: set[tuple[LayerId, Version]] = set()
        """Buffers that arrived before the step was admitted here."""

    def admit(self, progress: Progress, is_trained: bool) -> tuple[list[Command], Iterator[Work]]:
        """Register a subnet under way; the last pass of a step determines the moves of the step.

        Returns the pushes that can be sent now, and the forwards in which a block became clear.
        """
        moves = self._whereabouts.admit(self._stage, progress.subnet, progress.partition)
        self._gates.admit(progress, moves, is_trained)
        joined = self._writes.expect(moves)
        apart = [
            self._clearance.passed(each.layer.stream, each.version, each.layer.block)
            for each in moves.preceded
            if not each.has_buffers or self._came_early(each)
        ]
        return joined + self.depart(moves.departures), chain.from_iterable(apart)

    def _came_early(self, before: Preceded) -> bool:
        key = (before.layer, before.version)
        is_here = key in self._early
        self._early.discard(key)
        return is_here

    def arrive(self, event: VersionArrived) -> tuple[Sequence[Command], Iterator[Work]]:
        """Process a parcel; returns commands, and the forwards with new clear blocks."""
        layer, version = event.layer, event.version
        if event.parcel == SUM:
            self._writes.arrive(layer, version)
            joined = self._writes.follow(layer)
            return [*joined, *self.ready(layer)], iter(())
        if event.parcel == BUFFERS:
            if not self._book.is_admitted(layer.stream, version):
                self._early.add((layer, version))
            return (), self._clearance.passed(layer.stream, version, layer.block)
        self._book.arrive(layer, version)
        commands = [*self._residency.arrive(layer), *self._writes.follow(layer)]
        return commands, self._clearance.written(layer, version)

    @property
    def are_pending(self) -> bool:
        return bool(self._waiting)

    def depart(self, departures: Iterable[Departure]) -> list[Command]:
        """Record what users need on other stages; returns the pushes that can be sent now."""
        commands: list[Command] = []
        for departure in departures:
            layer, version = departure.layer, departure.version
            if departure.parcel == BUFFERS:
                self._buffers[layer, version] = departure
            else:
                self._waiting.setdefault(layer, {}).setdefault(version, []).append(departure)
                commands += self.ready(layer)
        return commands

    def ready(self, layer: LayerId) -> list[Command]:
        """Return the pushes of a layer's newest version; a layer that moves is saved first."""
        by_version = self._waiting.get(layer)
        if by_version is None:
            return []
        newest = self._book.newest(layer)
        is_sum = any(each.parcel == SUM for each in by_version.get(newest, ()))
        if is_sum and (
            self._writes.lacks_sum(layer, newest) or self._gates.hold_sum(layer, newest)
        ):
            return []
        waiting = by_version.pop(newest, ())
        if not by_version:
            del self._waiting[layer]
        commands: list[Command] = []
        for place, departure in enumerate(waiting):
            if departure.parcel in (LAYER, SUM):
                if self._residency.needs_save(layer):
                    self._residency.save_first(layer)
                    self._waiting.setdefault(layer, {})[departure.version] = [*waiting[place:]]
                    return commands
                commands += self._residency.forget(layer)
            commands.append(PushVersion(*departure))
        return commands

    def through(self, progress: Progress) -> list[Command]:
        """Process the end of a block's backward; after the last one, gates may release sums."""
        if self._gates.are_none or any(work.todo for work in progress.backwards.values()):
            return []
        return [*self._gates.passed(progress), *self._leave(progress)]

    def release(self, progress: Progress) -> list[Command]:
        """Release a pass that a gate held back; returns the resulting WRITEs and pushes."""
        return [*self._writes.release(progress), *self._leave(progress)]

    def _leave(self, progress: Progress) -> list[Command]:
        layers = (ticket.layer for ticket in progress.tickets.values())
        return [push for layer in layers for push in self.ready(layer)]

    def passed(self, progress: Progress, block: int) -> list[Command]:
        """Process the end of a block's forward; returns the push of the buffers that it left."""
        if not self._buffers:
            return []
        key = (progress.tickets[block].layer, Version(progress.subnet.sequence_id))
        departure = self._buffers.pop(key, None)
        return [] if departure is None else [PushVersion(*departure)]

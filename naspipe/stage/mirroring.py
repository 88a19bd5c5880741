"""Handing layers over: a layer leaves this stage once its next user runs on another one."""

from __future__ import annotations

from naspipe.core.commands import Command, PushVersion
from naspipe.core.ids import LayerId, StageId, Version
from naspipe.core.partition import Partition
from naspipe.core.ports import Residency
from naspipe.core.subnet import Subnet
from naspipe.schedule.versions import VersionBook
from naspipe.schedule.whereabouts import Departure, Whereabouts


class Departures:
    """Layers that have to leave a stage, each when its version is written and saved.

    The push comes at the WRITE or when the next user is admitted, whichever is later.
    """

    def __init__(
        self,
        stage: StageId,
        whereabouts: Whereabouts,
        book: VersionBook,
        residency: Residency,
    ) -> None:
        self._stage = stage
        self._whereabouts = whereabouts
        self._book = book
        self._residency = residency
        self._waiting: dict[tuple[LayerId, Version], Departure] = {}

    def admit(self, subnet: Subnet, partition: Partition) -> list[Command]:
        """Note what a subnet needs on other stages; returns the pushes that can go now."""
        commands: list[Command] = []
        for departure in self._whereabouts.admit(self._stage, subnet, partition):
            self._waiting[departure.layer, departure.version] = departure
            commands += self.ready(departure.layer)
        return commands

    def ready(self, layer: LayerId) -> list[Command]:
        """The push of a layer, when its newest version is to leave and is in host memory."""
        key = (layer, self._book.newest(layer))
        if key not in self._waiting:
            return []
        if self._residency.needs_save(layer):
            self._residency.save_first(layer)
            return []
        departure = self._waiting.pop(key)
        return [*self._residency.forget(layer), PushVersion(*departure)]

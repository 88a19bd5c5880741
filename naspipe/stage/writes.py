"""WRITEs that are owed: each follows the one before it, when nothing is in its way."""

from __future__ import annotations

from collections.abc import Iterator

from naspipe.core.access import AccessKind
from naspipe.core.commands import WriteLayer
from naspipe.core.errors import InvariantError
from naspipe.core.events import WriteFinished
from naspipe.core.ids import LayerId, Version
from naspipe.core.ports import Residency
from naspipe.schedule.versions import Ticket, VersionBook
from naspipe.stage.work import Progress


class Writes:
    """Puts the WRITEs of one stage in order; a layer is pinned only while it is written."""

    def __init__(self, book: VersionBook, residency: Residency) -> None:
        self._book = book
        self._residency = residency
        self._owed: dict[tuple[LayerId, Version], tuple[Progress, int]] = {}
        """By layer and the version that the WRITE follows."""
        self._due: dict[LayerId, tuple[Progress, int]] = {}
        """Nothing is in their way but that the layer is not on the device."""
        self._num_under_way = 0

    @property
    def are_under_way(self) -> bool:
        """Whether one was commanded and has not finished."""
        return self._num_under_way > 0

    @property
    def due(self) -> Iterator[LayerId]:
        """Layers that have to be loaded for their WRITE."""
        return iter(self._due)

    def owe(self, progress: Progress, block: int) -> list[WriteLayer]:
        """The gradient of a block is there; returns the WRITE, if it can begin."""
        ticket = self._book.queue_write(progress.tickets[block], progress.subnet.sequence_id)
        progress.tickets[block] = ticket
        self._owed[ticket.layer, ticket.base] = (progress, block)
        return self.follow(ticket.layer)

    def follow(self, layer: LayerId) -> list[WriteLayer]:
        """A layer was written, or a reader is done with it: the next WRITE, if it can begin."""
        key = (layer, self._book.newest(layer))
        if key not in self._owed or not self._book.may_replace(layer):
            return []
        if not self._owed[key][0].is_released:
            return []
        self._due[layer] = self._owed.pop(key)
        return self._begin(layer)

    def release(self, progress: Progress) -> list[WriteLayer]:
        """The WRITEs of a step are held back no longer; returns those of a pass that can begin."""
        layers = [ticket.layer for ticket in progress.tickets.values() if ticket.is_writer]
        return [write for layer in layers for write in self.follow(layer)]

    def resume(self) -> list[WriteLayer]:
        """The WRITEs that are due and whose layers are on the device by now."""
        return [write for layer in list(self._due) for write in self._begin(layer)]

    def finish(self, event: WriteFinished, progress: Progress) -> Ticket:
        """A WRITE is over; returns its ticket.

        Raises:
            InvariantError: when it was not under way.
        """
        layer = event.layer
        ticket = progress.tickets.get(layer.block)
        if ticket is None or ticket.layer != layer or layer.block not in progress.writing:
            raise InvariantError(
                f"layer {layer}: WRITE {event.sequence_id} finished, but was not under way"
            )
        progress.writing.remove(layer.block)
        self._num_under_way -= 1
        self._residency.release(layer, AccessKind.WRITE)
        return ticket

    def _begin(self, layer: LayerId) -> list[WriteLayer]:
        if not self._residency.acquire((layer,)):
            return []
        progress, block = self._due.pop(layer)
        ticket = progress.tickets[block]
        self._num_under_way += 1
        progress.writing.add(block)
        keeps_base = self._book.has_copies(layer) and self._book.keeps(layer, ticket.base)
        sequence_id = progress.subnet.sequence_id
        ends_step = self._book.ends_step(layer, Version(sequence_id))
        return [WriteLayer(layer, sequence_id, ticket.base, keeps_base, ends_step)]

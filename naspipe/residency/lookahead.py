"""A forecast, drawn no further than a decision needs, and kept while only uses of it pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from naspipe.core.ids import LayerId


class Lookahead:
    """The distinct layers of a forecast, in the order of their next use.

    Args:
        forecast: layers in the order in which they will be needed; may repeat, may be lazy.
        reach: entries of it to look at, at most.
    """

    __slots__ = ("_entries", "_later", "_newest", "_next", "_order", "places")

    def __init__(self, forecast: Iterable[LayerId], reach: int) -> None:
        self._entries = islice(forecast, reach)
        self._order: list[LayerId] = []
        """All entries that were drawn."""
        self._later: list[int] = []
        """Of each of them, the place of the same layer's next one; 0 where none was drawn."""
        self._newest: dict[LayerId, int] = {}
        self._next = 0
        """The place of the first use that is not over."""
        self.places: dict[LayerId, int] = {}
        """Of each layer drawn so far, the place of its next use; they rise from use to use."""

    def __iter__(self) -> Iterator[LayerId]:
        """All of them from the next use on, whatever else was drawn meanwhile."""
        order, places = self._order, self.places
        place = self._next
        while place < len(order) or self._draw(1):
            layer = order[place]
            if places[layer] == place:
                yield layer
            place += 1

    def find(self, layers: set[LayerId]) -> None:
        """Draw the rest, unless all of the layers have a place."""
        if layers - self.places.keys():
            self._draw(None)

    def pass_to(self, layer: LayerId) -> bool:
        """All uses before the next one of this layer are over; False where it has none here."""
        places, later, order = self.places, self._later, self._order
        while layer not in places:
            if not self._draw(1):
                return False
        for place in range(self._next, places[layer]):
            used = order[place]
            if later[place]:
                places[used] = later[place]
            else:
                del places[used], self._newest[used]
        self._next = places[layer]
        return True

    def _draw(self, count: int | None) -> bool:
        """Some more entries, or all; whether there was any."""
        order, later, newest, places = self._order, self._later, self._newest, self.places
        place = begin = len(order)
        for layer in islice(self._entries, count):
            before = newest.get(layer)
            if before is None:
                places[layer] = place
            else:
                later[before] = place
            newest[layer] = place
            order.append(layer)
            later.append(0)
            place += 1
        return place > begin

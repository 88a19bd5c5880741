"""A forecast, drawn no further than a decision needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, islice

from naspipe.core.ids import LayerId


class Lookahead:
    """The distinct layers of a forecast, in the order of their next use.

    Args:
        forecast: layers in the order in which they will be needed; may repeat, may be lazy.
        reach: entries of it to look at, at most.
    """

    __slots__ = ("_entries", "_order", "places")

    def __init__(self, forecast: Iterable[LayerId], reach: int) -> None:
        self._entries = islice(forecast, reach)
        self._order: list[LayerId] = []
        self.places: dict[LayerId, int] = {}
        """The place of each layer drawn so far: 0 for the first to be used."""

    def __iter__(self) -> Iterator[LayerId]:
        """All of them from the first on, whatever else was drawn meanwhile."""
        order, places, entries = self._order, self.places, self._entries
        place = 0
        while True:
            if place == len(order):
                for layer in entries:
                    if layer not in places:
                        places[layer] = place
                        order.append(layer)
                        break
                else:
                    return
            yield order[place]
            place += 1

    def find(self, layers: set[LayerId]) -> None:
        """Draw the rest, unless all of the layers have a place."""
        if layers - self.places.keys():
            rest = [layer for layer in dict.fromkeys(self._entries) if layer not in self.places]
            self.places.update(zip(rest, count(len(self._order))))
            self._order += rest

"""What a stage will use next: layers in order, drawn no further than anyone looks."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence, Set

from naspipe.config.ids import LayerId


class Drawn:
    """The distinct layers of an iterator's lists, kept for all who look.

    Args:
        source: lists, each without repeats; may repeat others', may be lazy, may be endless.
    """

    __slots__ = ("_layers", "_places", "_source")

    def __init__(self, source: Iterable[Sequence[LayerId]] = ()) -> None:
        self._source = iter(source)
        self._layers: list[LayerId] = []
        self._places: dict[LayerId, int] = {}

    def __iter__(self) -> Iterator[LayerId]:
        """All of them from the first on, whatever else was drawn meanwhile."""
        layers, place = self._layers, 0
        while place < len(layers) or self._draw(place + 1):
            yield layers[place]
            place += 1

    def places(self, wanted: Set[LayerId], reach: int) -> Mapping[LayerId, int]:
        """Where layers are: at least those of the wanted that are among the first ``reach``."""
        if wanted - self._places.keys():
            self._draw(reach)
        return self._places

    def _draw(self, count: int) -> bool:
        """Draw whole lists until there are so many; whether there are."""
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
        first: what is used first; drawn at once.
        then: what follows; drawn as far as it is looked at, and kept by whoever made it.
        needed: all layers that may follow.
    """

    __slots__ = ("_first", "_needed", "_then")

    def __init__(self, first: Iterable[LayerId], then: Drawn, needed: Container[LayerId]) -> None:
        self._first = dict.fromkeys(first)
        self._then = then
        self._needed = needed

    def __iter__(self) -> Iterator[LayerId]:
        """Each layer once, at its first place."""
        first = self._first
        yield from first
        for layer in self._then:
            if layer not in first:
                yield layer

    def may_use(self, layer: LayerId) -> bool:
        """Whether the layer is used first or may follow; nothing is drawn to tell."""
        return layer in self._needed or layer in self._first

    def next_uses(self, layers: Collection[LayerId], reach: int) -> dict[LayerId, int]:
        """How far ahead each of these layers is used: 0 is the very next.

        What lies ``reach`` or more ahead, or is not mentioned, is left out.
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

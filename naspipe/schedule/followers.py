"""Layers that follow others: when the WRITE of a source, and when that of a follower, may come.

A step's version of a follower is made of the same step's version of its source, which is then
stepped in place. So the follower's WRITE of a step comes behind the source's, and before the
source's next one. The last pass that uses them may be another one: a follower need not be in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from naspipe.config.ids import INITIAL, LayerId, StreamId, Version
from naspipe.config.rules import BlockRule, Follows, Rule, rule_with_state
from naspipe.config.steps import ONE_PASS, Steps

_Place = tuple[StreamId, int]
"""A block of a stream."""


class Followers:
    """The sources and followers among the layers of one stage.

    Args:
        rules: of each stream, the rule of each block of its chain.
        ended: the last step whose WRITEs of a layer are all over on this stage.
        steps: how passes form steps, in every stream.
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
        """Of sources: the last step that was written here."""
        for place, rule in _places(rules):
            if isinstance(rule, Follows):
                source = (StreamId(rule.stream), rule.block)
                self._sources[place] = source
                self._followers.setdefault(source, []).append(place)

    def may_end_step(self, layer: LayerId, version: Version) -> bool:
        """Whether nothing of this kind is in the way of the WRITE that ends a step."""
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

"""What to load now: layers in the order of their need, as far as loads and room go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from itertools import islice
from typing import NamedTuple

from naspipe.config.errors import InvariantError
from naspipe.config.ids import LayerId
from naspipe.core.commands import EvictLayer, LoadLayer
from naspipe.core.ports import Ahead
from naspipe.residency.eviction import choose_victims, enough_of, eviction_order
from naspipe.residency.ledger import LayerState, Ledger

REACH = 128
"""Layers of a forecast that are looked at; what lies beyond counts as not mentioned. Twice as many
save three loads in a thousand, simulated for ``nlp.c2`` with 1.5 subnets of memory."""

LEAST_AHEAD, MOST_AHEAD = 4, 10
"""How many of the next layers are loaded ahead of their use. A forecast changes with every message,
so what is loaded further ahead is mostly evicted unused."""

FAR = 8
"""How many layers behind those are looked at, to know how long nothing has to be loaded."""

CALM_LOADS = 64
"""Whenever the stage stands still for a layer, :data:`MOST_AHEAD` are loaded ahead from then on,
and one less with every so many loads. Simulated beside always 8, with memory for 1.5 subnets:
``nlp.c1``, ``nlp.c2``, ``cv.c1`` and ``cv.c3`` at tiny scale, whose loads are short, have 2 to 25 %
fewer loads and as many hits; ``cv.c1`` at the paper's costs, whose loads are long, has 0.05 % more
hits."""


class _Settled(NamedTuple):
    """Nothing can be loaded while the token is this, and neither count changes as it says."""

    token: Hashable
    gains: int | None = None
    """Until the ledger's count is another; None for any."""
    uses_over: int | None = None
    """Until the ledger's count is this; None for any."""


class Prefetcher:
    """Chooses loads, and the evictions that make room for them.

    The next layers of a forecast are taken in order. One that has no room ends the round, so that
    none needed later takes the room it waits for. Room is what is free and what layers occupy
    that are clean, held by nothing and not needed sooner.

    Args:
        ledger: where loads and evictions are entered.
        size_of: bytes of a layer on the device.
        away: layers that live on another stage at present: never loaded.
        max_loads: loads that may be under way at a time.
        reach: layers of a forecast to look at.
    """

    def __init__(
        self,
        ledger: Ledger,
        size_of: Callable[[LayerId], int],
        away: Collection[LayerId],
        max_loads: int,
        reach: int = REACH,
    ) -> None:
        self._ledger = ledger
        self._size_of = size_of
        self._away = away
        self._max_loads = max_loads
        self._reach = reach
        self._ahead = LEAST_AHEAD
        self._calm_loads = 0
        """Since the stage stood still, or since ``_ahead`` became less."""
        self._settled: _Settled | None = None

    def reset(self) -> None:
        """Look anew at the next forecast, whatever its token says."""
        self._settled = None

    def is_settled(self, token: Hashable) -> bool:
        """Whether it is known, without a look at the forecast, that nothing can be loaded.

        Without a token (None) that is known only while the loads under way are enough.
        """
        if self._ledger.num_loading >= self._max_loads:
            return True
        if token is None or self._settled is None:
            return False
        settled, ledger = self._settled, self._ledger
        return (
            (settled.gains is None or settled.gains == ledger.gains)
            and (settled.uses_over is None or settled.uses_over > ledger.uses_over)
            and settled.token == token
        )

    def plan(
        self, ahead: Ahead, is_demanded: bool, token: Hashable
    ) -> tuple[list[LoadLayer | EvictLayer], list[LayerId] | None]:
        """The commands to give, and None; or, while a demanded layer has no room, a list.

        It holds the dirty layers that would make room once saved, the best to evict first.
        At least one more load must be allowed, as :meth:`is_settled` tells.

        Raises:
            InvariantError: when the demanded layer is away.
        """
        ledger, commands = self._ledger, list[LoadLayer | EvictLayer]()
        room = ledger.free_bytes + ledger.evictable_bytes
        self._settled = None
        if is_demanded:
            self._ahead, self._calm_loads = MOST_AHEAD, 0
        layers = islice(ahead, self._reach)
        for place, layer in enumerate(islice(layers, self._ahead)):
            is_awaited = is_demanded and place == 0
            if kept_bytes := ledger.evictable_size(layer):
                room -= kept_bytes
            elif ledger.state(layer) is not LayerState.ABSENT:
                continue
            elif layer not in self._away:
                size_bytes = self._size_of(layer)
                if size_bytes > room:
                    if is_awaited:
                        return commands, self._worth_saving(ahead)
                    break
                commands += self._load(layer, size_bytes, ahead)
                room -= size_bytes
                if ledger.num_loading >= self._max_loads:
                    return commands, None
            elif is_awaited:
                raise InvariantError(f"layer {layer} to be loaded: it lives on another stage now")
            if room <= 0:
                break
        else:
            self._settled = _Settled(token, uses_over=self._next_look(layers))
            return commands, None
        self._settled = _Settled(token, gains=ledger.gains)
        return commands, None

    def _next_look(self, beyond: Iterator[LayerId]) -> int | None:
        """All that is near is there: how many uses will be over when one comes near that is not.

        None when there is none. A use that is over brings what follows nearer by one place.
        """
        ledger, away = self._ledger, self._away
        for place, layer in enumerate(islice(beyond, FAR)):
            if ledger.state(layer) is LayerState.ABSENT and layer not in away:
                return ledger.uses_over + place + 1
        return None if next(beyond, None) is None else ledger.uses_over + FAR + 1

    def _load(self, layer: LayerId, size_bytes: int, ahead: Ahead) -> list[LoadLayer | EvictLayer]:
        """Load a layer, after the eviction of what has to give way.

        None of that is needed sooner than the layer: there is room enough without.
        """
        ledger, commands = self._ledger, list[LoadLayer | EvictLayer]()
        if size_bytes > ledger.free_bytes:
            for victim in self._victims(ahead, size_bytes - ledger.free_bytes):
                ledger.evict(victim)
                commands.append(EvictLayer(victim))
        ledger.load(layer)
        commands.append(LoadLayer(layer))
        self._calm_loads += 1
        if self._calm_loads >= CALM_LOADS and self._ahead > LEAST_AHEAD:
            self._ahead, self._calm_loads = self._ahead - 1, 0
        return commands

    def _victims(self, ahead: Ahead, missing_bytes: int) -> list[LayerId]:
        """What to evict: where that is enough, only what nobody will use.

        Who does not look ahead does not know that either.
        """
        if self._reach > 1:
            unused = (row for row in self._ledger.evictable() if not ahead.may_use(row.layer))
            if victims := enough_of(unused, missing_bytes):
                return victims
        evictable = list(self._ledger.evictable())
        next_uses = ahead.next_uses([row.layer for row in evictable], self._reach)
        return choose_victims(evictable, next_uses, missing_bytes)

    def _worth_saving(self, ahead: Ahead) -> list[LayerId]:
        unsaved = self._ledger.unsaved()
        next_uses = ahead.next_uses([row.layer for row in unsaved], self._reach)
        return [row.layer for row in eviction_order(unsaved, next_uses)]

"""The residency manager of one stage: which layers to load, save and evict, and when.

Theory of operation
-------------------

Layers live in host memory. A layer must be *resident* on the device while one of its blocks is
computed or its update is applied. The manager implements the decisions of NASPipe's context manager
(ASPLOS 2022): it returns ``LoadLayer``, ``SaveLayer`` and ``EvictLayer``, and the worker or the
simulator carries them out.

**States of a layer** (kept by ``Ledger``). *Absent*, *loading* (its bytes count from the command
on) and *resident*. A resident layer may be *pinned* by the blocks and the update that use it,
*dirty* if its device copy is newer than the host copy, and *being saved*. Only a layer that is
resident, clean and not in use may be evicted. Shared layers may be *permanent*: once loaded, they
stay. A layer that lives on another stage is *away* and is never loaded.

**Invariants.**

- The bytes of all layers that are loading or resident never exceed the budget.
- No update is lost: a dirty layer is saved before it is evicted or sent to another stage.
- Loads finish in the order of their commands, and so do saves.
- If the stage is stalled on a layer, something is under way that will make room for it. Otherwise
  the budget is below the minimum that works, and ``plan`` raises ``InvariantError``.

**Why this way.** The scheduler knows future accesses, which a cache could only guess. The predictor
(``engine/predictor``) lists the layers of the tasks that will run next, in order. Loads follow that
list, and the victim is the layer whose next use is furthest ahead (Belady's rule), which is optimal
if the list is right. The list changes with each event, so only the next few layers are loaded ahead
(``Prefetcher``), and fewer if the stage has not stalled recently.

**What was tried and rejected.** Least-recently-used eviction (still used with ``prefetch=false``)
evicts what the next subnet needs, because subnets do not repeat. Loading as far ahead as room
allows evicts layers before their use. With more than two concurrent saves, a layer may be written
again before its bytes are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.ids import AccessKind, LayerId
from naspipe.engine.commands import EvictLayer, LoadLayer, SaveLayer
from naspipe.engine.ledger import LayerState, Ledger, choose_victims, enough_of, eviction_order
from naspipe.engine.ports import Ahead, Size, Sizes

REACH = 128
"""Number of layers of a forecast that are considered; layers beyond count as not mentioned.
Doubling it saves three loads in a thousand, simulated for ``nlp.c2`` with 1.5 subnets of memory."""

LEAST_AHEAD, MOST_AHEAD = 4, 10
"""Number of upcoming layers that are loaded ahead of their use. A forecast changes with every
message, so layers loaded further ahead are mostly evicted unused."""

FAR = 8
"""Number of layers inspected beyond those, to find out for how long nothing has to be loaded."""

CALM_LOADS = 64
"""Whenever the stage stalls on a layer, :data:`MOST_AHEAD` layers are loaded ahead from then on,
and one less after each ``CALM_LOADS`` loads. Simulated and compared with a constant 8, with memory
for 1.5 subnets: ``nlp.c1``, ``nlp.c2``, ``cv.c1`` and ``cv.c3`` at tiny scale, whose loads are
short, have 2 to 25 % fewer loads and as many hits; ``cv.c1`` at the paper's costs, whose loads are
long, has 0.05 % more hits."""


class _Settled(NamedTuple):
    """Nothing can be loaded as long as the token and the counts have these values."""

    token: Hashable
    gains: int | None = None
    """Valid until the ledger's count differs; None for always."""
    uses_over: int | None = None
    """Valid until the ledger's count reaches this; None for always."""


class Prefetcher:
    """Chooses loads, and the evictions that make room for them.

    The next layers of a forecast are taken in order. The round ends at the first one that has no
    room, so that layers needed later do not take the room it waits for. Room consists of free bytes
    and the bytes of layers that are clean, not in use and not needed sooner.
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
        self._settled: _Settled | None = None

    def reset(self) -> None:
        self._settled = None

    def is_settled(self, token: Hashable) -> bool:
        """Return True if it is known, without a look at the forecast, that nothing can be loaded.

        Without a token (None) that is known only while the maximum number of loads is under way.
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
        """Return the commands to issue and None, or a list if a demanded layer has no room.

        The list holds the dirty layers that would make room once saved, the best to evict first. At
        least one more load must be allowed, see :meth:`is_settled`.
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
        """Return the number of finished uses at which an absent layer comes near.

        None if there is no such layer. Each finished use moves the following layers nearer by one
        place.
        """
        ledger, away = self._ledger, self._away
        for place, layer in enumerate(islice(beyond, FAR)):
            if ledger.state(layer) is LayerState.ABSENT and layer not in away:
                return ledger.uses_over + place + 1
        return None if next(beyond, None) is None else ledger.uses_over + FAR + 1

    def _load(self, layer: LayerId, size_bytes: int, ahead: Ahead) -> list[LoadLayer | EvictLayer]:
        """Load a layer, after evicting the layers that have to make room.

        None of these is needed sooner than the layer, because there is room enough without them.
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
        """Return what to evict: only layers that will not be used, if these are enough.

        That is unknown if the prefetcher does not look ahead.
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


MemoryCommand = LoadLayer | SaveLayer | EvictLayer

MAX_SAVES = 2
"""Maximum number of concurrent saves: the next is queued when one ends, and none waits so long that
the layer is written again before its bytes are read."""


class Residency:
    """Which of a stage's layers are on its device: the paper's context manager.

    This base class stands for no memory budget: every layer is always on the device.
    """

    limits_memory = False
    """True if there is a budget. If so, a gradient is consumed before the next one is made;
    otherwise gradients may wait for their WRITEs until a run is over."""

    def acquire(self, layers: Sequence[LayerId]) -> int:
        """Pin the leading layers that are on the device, each once; returns their number."""
        return len(layers)

    def release(self, layer: LayerId, kind: AccessKind) -> None:
        """Unpin a layer once, after an access of this kind."""

    def needs_save(self, layer: LayerId) -> bool:
        """Return True if the newest version must be saved before the layer is sent."""
        return False

    def save_first(self, layer: LayerId) -> None:
        """Save this layer before others, because another stage waits for it."""

    def on_loaded(self, layer: LayerId) -> None:
        """Record that the oldest load under way has finished."""

    def on_saved(self, layer: LayerId) -> None:
        """Record that the oldest save under way has finished."""

    def forget(self, layer: LayerId) -> Sequence[MemoryCommand]:
        """Record that the layer lives on another stage now; returns the immediate commands."""
        return ()

    def arrive(self, layer: LayerId) -> Sequence[MemoryCommand]:
        """Record that the layer arrived in host memory; older copies are discarded.

        Returns the commands to carry out immediately.
        """
        return ()

    def plan(
        self, look_ahead: Callable[[], Ahead], is_demanded: bool = False, token: Hashable = None
    ) -> Sequence[MemoryCommand]:
        """Return what to start now, in order; nothing if called again without news.

        Args:
            look_ahead: makes the forecast; called only if it can matter. Layers that are away are
                skipped.
            is_demanded: the stage is idle and waits for the first layer of the forecast.
            token: differs whenever the forecast does, except for uses that have finished by now;
                None if that is not known.

        Raises:
            InvariantError: if the demanded layer is away, or if nothing is under way that could
                make room for it, because the budget is too small.
        """
        return ()


class ResidencyManager(Residency):
    """Keeps the layers in use on the device, and those that will be used soon.

    Loads must be reported back in the given order, and so must saves. A layer of no bytes is always
    resident, and never loaded, saved or evicted. Every method raises :class:`InvariantError` if its
    input is inconsistent with the state.

    Args:
        budget_bytes: a hard limit; see :func:`check_budget`.
        sizes: the size of each layer.
        permanent: streams and blocks whose layers stay once loaded (shared layers).
        prefetches: load ahead of need; if False, only what the stage waits for is loaded, and the
            least recently used layers are evicted.
        max_loads: maximum number of concurrent loads.
    """

    limits_memory = True

    def __init__(
        self,
        budget_bytes: int,
        sizes: Sizes,
        permanent: Collection[tuple[int, int]] = (),
        *,
        prefetches: bool = True,
        max_loads: int = 2,
    ) -> None:
        if max_loads < 1:
            raise ConfigError(f"max_loads: expected 1 or more loads at a time, found {max_loads}")
        self._permanent = frozenset(permanent)

        @cache
        def size(layer: LayerId) -> Size:
            return sizes.of(layer.block, layer.candidate, layer.stream)

        def size_of(layer: LayerId) -> int:
            return size(layer).state_bytes

        self._size = size
        self._prefetches = prefetches
        self._away: set[LayerId] = set()
        self._overtaken: set[LayerId] = set()
        """Layers being loaded whose bytes became outdated before the load finished."""
        self._evicted: list[EvictLayer] = []
        """Evictions that the ledger has recorded but that are not commanded yet."""
        self._first_to_save: set[LayerId] = set()
        self.ledger = Ledger(budget_bytes, size_of, lambda layer: layer[:2] in self._permanent)
        self._prefetcher = Prefetcher(
            self.ledger, size_of, self._away, max_loads, REACH if prefetches else 1
        )

    def acquire(self, layers: Sequence[LayerId]) -> int:
        for count, layer in enumerate(layers):
            if not self.ledger.is_resident(layer):
                return count
            self.ledger.pin(layer)
        return len(layers)

    def release(self, layer: LayerId, kind: AccessKind) -> None:
        """A WRITE makes a layer dirty. So do the forward and backward of a layer whose forward
        writes buffers: a recompute changes the buffers and restores them, and a concurrent save may
        have seen them in between.
        """
        wrote = kind is AccessKind.WRITE or self._size(layer).writes_forward
        self.ledger.unpin(layer, wrote)

    def needs_save(self, layer: LayerId) -> bool:
        """A permanent layer never leaves the device."""
        return layer[:2] not in self._permanent and self.ledger.needs_save(layer)

    def save_first(self, layer: LayerId) -> None:
        if self.ledger.needs_save(layer):
            self._first_to_save.add(layer)

    def on_loaded(self, layer: LayerId) -> None:
        self.ledger.loaded(layer)
        if layer in self._overtaken:
            self._overtaken.remove(layer)
            self._evicted.append(self._evict(layer))

    def on_saved(self, layer: LayerId) -> None:
        self.ledger.saved(layer)
        if not self.ledger.needs_save(layer):
            self._first_to_save.discard(layer)

    def forget(self, layer: LayerId) -> Sequence[MemoryCommand]:
        """The layer is not loaded again before :meth:`arrive`. A load under way is evicted by the
        first :meth:`plan` after it has finished. A permanent layer stays: its next version replaces
        it in place.
        """
        if layer[:2] in self._permanent:
            return ()
        self._away.add(layer)
        return self._discard(layer)

    def arrive(self, layer: LayerId) -> Sequence[MemoryCommand]:
        """A permanent layer already has the new version on the device."""
        if layer[:2] in self._permanent:
            return ()
        self._away.discard(layer)
        return self._discard(layer)

    def plan(
        self, look_ahead: Callable[[], Ahead], is_demanded: bool = False, token: Hashable = None
    ) -> Sequence[MemoryCommand]:
        commands: list[MemoryCommand] = []
        if self._evicted:
            commands += self._evicted
            self._evicted.clear()
        worth_saving: list[LayerId] | None = None
        # The demand may be the next of a run: the same token, but another first layer.
        known = None if is_demanded else token
        if (is_demanded or self._prefetches) and not self._prefetcher.is_settled(known):
            loads, worth_saving = self._prefetcher.plan(look_ahead(), is_demanded, token)
            commands += loads
        if self.ledger.has_unsaved:
            commands += self._start_saves(worth_saving)
        ledger = self.ledger
        if worth_saving is not None and not (
            ledger.num_loading or ledger.num_saving or ledger.num_pinned
        ):
            raise InvariantError(
                f"no room for the layer that the stage waits for: expected it within "
                f"{ledger.budget_bytes} bytes, found {ledger.used_bytes} that cannot be evicted"
            )
        return commands

    def _start_saves(self, wanted: list[LayerId] | None) -> list[SaveLayer]:
        """Save what another stage waits for, then the wanted layers, then the oldest first."""
        ledger = self.ledger
        count = MAX_SAVES - ledger.num_saving
        if count <= 0:
            return []
        order = wanted if wanted is not None else [row.layer for row in ledger.unsaved()]
        if self._first_to_save:
            order = sorted(order, key=lambda layer: layer not in self._first_to_save)
        for layer in order[:count]:
            ledger.save(layer)
        return [SaveLayer(layer) for layer in order[:count]]

    def _discard(self, layer: LayerId) -> list[EvictLayer]:
        self._prefetcher.reset()
        state = self.ledger.state(layer)
        if state is LayerState.LOADING:
            self._overtaken.add(layer)
        if state is not LayerState.RESIDENT or self.ledger.is_empty(layer):
            return []
        return [self._evict(layer)]

    def _evict(self, layer: LayerId) -> EvictLayer:
        self.ledger.evict(layer)
        self._prefetcher.reset()
        return EvictLayer(layer)


_LEAST_MEANT, _FEW = 1024, 100
"""A budget of fewer bytes probably lacks its unit: a large unit if the number is small."""


def check_budget(budget_bytes: int, permanent_bytes: int, largest_bytes: int) -> None:
    """Check that every layer of a stage can be made resident, one at a time if necessary.

    Args:
        budget_bytes: the bytes that the stage's layers may occupy on the device.
        permanent_bytes: all of the stage's shared layers, with their optimizer state.
        largest_bytes: the largest of its other layers, with its optimizer state.

    Raises:
        ConfigError: if the budget is below the sum of the two.
    """
    least_bytes = permanent_bytes + largest_bytes
    if budget_bytes < least_bytes:
        meant = f"{budget_bytes}{'GiB' if budget_bytes < _FEW else 'MiB'}"
        hint = f"; write a unit, as in {meant}" if budget_bytes < _LEAST_MEANT else ""
        raise ConfigError(
            f"memory budget: expected at least {least_bytes} bytes per stage ({permanent_bytes} "
            f"for its shared layers and {largest_bytes} for its largest layer, optimizer state "
            f"included), found {budget_bytes}{hint}"
        )

"""The residency manager of one stage: which layers to load, save and evict, and when.

Theory of operation
-------------------

Layers live in host memory. A layer must be *resident* on the device while one of its blocks is
computed or its update is applied. The manager is the context manager of NASPipe (ASPLOS 2022) as
decisions only: it returns ``LoadLayer``, ``SaveLayer`` and ``EvictLayer``, and the worker or the
simulator carries them out.

**States of a layer** (kept by ``Ledger``). *Absent*, *loading* (its bytes count from the command
on) and *resident*. A resident layer may be *pinned* by the blocks and the update that use it,
*dirty* if its device copy is newer than the host copy, and *being saved*. Only a layer that is
resident, clean and held by nothing may be evicted. Shared layers may be *permanent*: once loaded,
they stay. A layer that lives on another stage is *away* and is never loaded.

**Invariants.**

- The bytes of all layers that are loading or resident never exceed the budget, at no moment.
- No update is lost: a dirty layer is saved before it is evicted or handed over.
- Loads finish in the order of their commands, and so do saves.
- If the stage stands still for a layer, something is under way that will make room for it.
  Otherwise the budget is below the least one that works, and ``plan`` raises ``InvariantError``.

**Why this way.** The scheduler knows the future better than a cache can guess it. The predictor
(``stage/predictor``) lists the layers of the tasks that will run next, in their order. Loads follow
that list, and the victim is the layer whose next use is furthest ahead (Belady's rule), which is
optimal if the list is right. The list changes with each event, so only the next few layers are
loaded ahead (``Prefetcher``), and fewer if the stage has not waited lately.

**What was tried and rejected.** Least-recently-used eviction (still used with ``prefetch=false``)
evicts what the next subnet needs, because subnets do not repeat. Loading as far ahead as room
allows evicts layers before their use. More than two saves at a time keep a layer waiting until it
is written again before its bytes are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from functools import cache

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.ids import AccessKind, LayerId
from naspipe.core.commands import EvictLayer, LoadLayer, SaveLayer
from naspipe.core.ports import Ahead
from naspipe.residency.ledger import LayerState, Ledger
from naspipe.residency.ports import Size, Sizes
from naspipe.residency.prefetch import REACH, Prefetcher

MemoryCommand = LoadLayer | SaveLayer | EvictLayer

MAX_SAVES = 2
"""Saves under way at a time: the next is at hand when one ends, and none waits so long that
the layer is written again before its bytes are read."""


class ResidencyManager:
    """Keeps the layers in use on the device, and those that will be used soon.

    Loads are told back in the order given, and so are saves. A layer of no bytes is always
    resident, and never loaded, saved or evicted. Every method raises :class:`InvariantError`
    when what it is told does not fit the state.

    Args:
        budget_bytes: a hard limit; see :func:`naspipe.residency.check.check_budget`.
        sizes: what each layer takes.
        permanent: streams and blocks whose layers stay once loaded (shared layers).
        prefetches: load ahead of need; without, only what the stage waits for is loaded, and
            the least recently used layers are evicted.
        max_loads: loads that may be under way at a time.
    """

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
        """Layers being loaded whose bytes were out of date before they were there."""
        self._evicted: list[EvictLayer] = []
        """Evictions that the ledger knows of and that are not commanded yet."""
        self._first_to_save: set[LayerId] = set()
        self._ledger = Ledger(budget_bytes, size_of, lambda layer: layer[:2] in self._permanent)
        self._prefetcher = Prefetcher(
            self._ledger, size_of, self._away, max_loads, REACH if prefetches else 1
        )

    limits_memory = True
    """See :class:`naspipe.core.ports.Residency`."""

    @property
    def used_bytes(self) -> int:
        """Bytes that layers occupy now, loads under way included."""
        return self._ledger.used_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that ``used_bytes`` has been."""
        return self._ledger.peak_bytes

    @property
    def resident(self) -> tuple[LayerId, ...]:
        """The layers on the device, in order of their IDs; layers of no bytes left out."""
        return self._ledger.resident

    def is_resident(self, layer: LayerId) -> bool:
        """Whether the layer can be used now."""
        return self._ledger.is_resident(layer)

    def acquire(self, layers: Sequence[LayerId]) -> int:
        """Pin the leading layers that are resident, each once; returns how many they are."""
        for count, layer in enumerate(layers):
            if not self._ledger.is_resident(layer):
                return count
            self._ledger.pin(layer)
        return len(layers)

    def release(self, layer: LayerId, kind: AccessKind) -> None:
        """Unpin a layer once, after an access of this kind.

        A WRITE makes it dirty. So do both passes of a layer whose forward writes: a recompute
        changes the buffers and puts them back, and a save under way may have seen them between.
        """
        wrote = kind is AccessKind.WRITE or self._size(layer).writes_forward
        self._ledger.unpin(layer, wrote)

    def needs_save(self, layer: LayerId) -> bool:
        """Whether the layer cannot leave the device yet: the host copy is older, or being written.

        A permanent one never leaves it.
        """
        return layer[:2] not in self._permanent and self._ledger.needs_save(layer)

    def save_first(self, layer: LayerId) -> None:
        """Save this layer before other dirty ones, because another stage waits for it."""
        if self._ledger.needs_save(layer):
            self._first_to_save.add(layer)

    def on_loaded(self, layer: LayerId) -> None:
        """The oldest load under way has finished."""
        self._ledger.loaded(layer)
        if layer in self._overtaken:
            self._overtaken.remove(layer)
            self._evicted.append(self._evict(layer))

    def on_saved(self, layer: LayerId) -> None:
        """The oldest save under way has finished."""
        self._ledger.saved(layer)
        if not self._ledger.needs_save(layer):
            self._first_to_save.discard(layer)

    def forget(self, layer: LayerId) -> Sequence[MemoryCommand]:
        """The layer lives on another stage now; returns the commands to carry out at once.

        It is not loaded again before :meth:`arrive`. A load under way is evicted as soon as
        it has finished, by the next :meth:`plan`. A permanent layer stays: its next version is
        put in its place.

        Raises:
            InvariantError: when the layer is in use, dirty or being saved.
        """
        if layer[:2] in self._permanent:
            return ()
        self._away.add(layer)
        return self._discard(layer)

    def arrive(self, layer: LayerId) -> Sequence[MemoryCommand]:
        """The layer came from another stage into host memory; anything older goes.

        Returns the commands to carry out at once. A permanent layer has it on the device.

        Raises:
            InvariantError: when the layer is in use, dirty or being saved.
        """
        if layer[:2] in self._permanent:
            return ()
        self._away.discard(layer)
        return self._discard(layer)

    def plan(
        self,
        look_ahead: Callable[[], Ahead],
        is_demanded: bool = False,
        token: Hashable = None,
    ) -> Sequence[MemoryCommand]:
        """What to start now, in order; asked again without news, nothing.

        Args:
            look_ahead: makes the forecast; called only where it can matter. Layers that are away
                are passed over.
            is_demanded: the stage is idle and waits for the first of them.
            token: differs whenever the forecast does, except for uses that are over by now;
                None when that is not known.

        Raises:
            InvariantError: when the demanded layer is away, or when nothing is under way that
                could make room for it: the budget is below the least one.
        """
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
        if self._ledger.has_unsaved:
            commands += self._start_saves(worth_saving)
        if worth_saving is not None:
            self._check_progress()
        return commands

    def _start_saves(self, wanted: list[LayerId] | None) -> list[SaveLayer]:
        """Save what another stage waits for, then what is wanted, then the oldest first."""
        ledger = self._ledger
        count = MAX_SAVES - ledger.num_saving
        if count <= 0:
            return []
        order = wanted if wanted is not None else [row.layer for row in ledger.unsaved()]
        if self._first_to_save:
            order = sorted(order, key=lambda layer: layer not in self._first_to_save)
        for layer in order[:count]:
            ledger.save(layer)
        return [SaveLayer(layer) for layer in order[:count]]

    def _check_progress(self) -> None:
        ledger = self._ledger
        if not (ledger.num_loading or ledger.num_saving or ledger.num_pinned):
            raise InvariantError(
                f"no room for the layer that the stage waits for: expected it within "
                f"{ledger.budget_bytes} bytes, found {ledger.used_bytes} that cannot be evicted"
            )

    def _discard(self, layer: LayerId) -> list[EvictLayer]:
        self._prefetcher.reset()
        state = self._ledger.state(layer)
        if state is LayerState.LOADING:
            self._overtaken.add(layer)
        if state is not LayerState.RESIDENT or self._ledger.is_empty(layer):
            return []
        return [self._evict(layer)]

    def _evict(self, layer: LayerId) -> EvictLayer:
        self._ledger.evict(layer)
        self._prefetcher.reset()
        return EvictLayer(layer)

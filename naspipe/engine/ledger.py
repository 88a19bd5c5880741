"""The ledger of one device's memory: the size and state of each layer.

It makes no decisions but rejects every move that would break a rule, so that the budget holds and
no bytes are lost whatever its callers decide.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from naspipe.config.errors import InvariantError
from naspipe.config.ids import LayerId

_NEVER = sys.maxsize


class Candidate(NamedTuple):
    """A layer on the device; ``last_used`` rises with every use of any layer."""

    layer: LayerId
    size_bytes: int
    last_used: int


def eviction_order(
    candidates: Iterable[Candidate], next_uses: Mapping[LayerId, int]
) -> list[Candidate]:
    """Return the candidates in eviction order, the best to evict first.

    Layers that the forecast does not mention come first, the least recently used of them before the
    others; then those whose next use (position in the forecast) is furthest.
    """

    def key(candidate: Candidate) -> tuple[int, int, LayerId]:
        next_use = next_uses.get(candidate.layer, _NEVER)
        return (-next_use, candidate.last_used, candidate.layer)

    return sorted(candidates, key=key)


def choose_victims(
    candidates: Iterable[Candidate], next_uses: Mapping[LayerId, int], needed_bytes: int
) -> list[LayerId]:
    """Return the layers to evict so that at least ``needed_bytes`` become free, in eviction order.

    Layers that turn out to be unnecessary, because a later one is large enough, are spared,
    starting with those used soonest. Empty if all candidates together are too small.
    """
    return enough_of(eviction_order(candidates, next_uses), needed_bytes)


def enough_of(candidates: Iterable[Candidate], needed_bytes: int) -> list[LayerId]:
    """Like ``choose_victims``, for ordered candidates; draws only as many as needed."""
    chosen: list[Candidate] = []
    missing = needed_bytes
    for candidate in candidates:
        chosen.append(candidate)
        missing -= candidate.size_bytes
        if missing <= 0:
            break
    if missing > 0:
        return []
    spare = -missing
    victims: list[LayerId] = []
    for candidate in reversed(chosen):
        if candidate.size_bytes <= spare:
            spare -= candidate.size_bytes
        else:
            victims.append(candidate.layer)
    return victims[::-1]


class LayerState(Enum):
    """State of a layer's device copy."""

    ABSENT = "absent"
    LOADING = "loading"
    """Commanded but not yet reported as loaded; its bytes already count."""
    RESIDENT = "resident"


@dataclass(slots=True)
class _Entry:
    """A layer that is on the device or being loaded."""

    size_bytes: int
    is_permanent: bool
    state: LayerState = LayerState.LOADING
    pins: int = 0
    is_dirty: bool = False
    """True if the device copy is newer than the copy that was last saved or is being saved."""
    is_saving: bool = False
    last_used: int = 0

    @property
    def is_idle(self) -> bool:
        return (
            self.state is LayerState.RESIDENT
            and self.pins == 0
            and not self.is_saving
            and not self.is_permanent
        )

    def __str__(self) -> str:
        marks = [self.state.value]
        marks += [f"{self.pins} pins"] if self.pins else []
        marks += ["dirty"] if self.is_dirty else []
        marks += ["being saved"] if self.is_saving else []
        marks += ["permanent"] if self.is_permanent else []
        return ", ".join(marks)


_ABSENT = _Entry(0, False, LayerState.ABSENT)


class Ledger:
    """Layers on one device under a byte budget.

    A layer of no bytes is always resident, and never loaded, saved or evicted. Permanent layers are
    loaded once and never saved or evicted.

    Args:
        budget_bytes: a hard limit; layers count from the load command until the eviction.
        size_of: returns the bytes of a layer on the device.
        is_permanent: returns True if a layer stays once it is loaded.
    """

    def __init__(
        self,
        budget_bytes: int,
        size_of: Callable[[LayerId], int],
        is_permanent: Callable[[LayerId], bool],
    ) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self.evictable_bytes = 0
        """Bytes of clean layers that are not in use."""
        self.gains = 0
        """Incremented whenever the room (free or evictable bytes) may have grown, or a use has
        finished."""
        self.uses_over = 0
        self.num_loading = 0
        self.num_saving = 0
        self.num_pinned = 0
        self._size_of = size_of
        self._is_permanent = is_permanent
        self._entries: dict[LayerId, _Entry] = {}
        self._evictable: dict[LayerId, _Entry] = {}
        self._by_age: list[tuple[int, LayerId]] = []
        """The evictable layers, ordered by their last use."""
        self._unsaved: dict[LayerId, _Entry] = {}
        self._uses = 0

    @property
    def free_bytes(self) -> int:
        return self.budget_bytes - self.used_bytes

    @property
    def resident(self) -> tuple[LayerId, ...]:
        """The layers on the device, in order of their IDs, without layers of no bytes."""
        return tuple(
            sorted(
                layer
                for layer, entry in self._entries.items()
                if entry.state is LayerState.RESIDENT and entry.size_bytes
            )
        )

    @property
    def has_unsaved(self) -> bool:
        return bool(self._unsaved)

    def is_empty(self, layer: LayerId) -> bool:
        return self._size_of(layer) == 0

    def state(self, layer: LayerId) -> LayerState:
        return self._find(layer).state

    def is_resident(self, layer: LayerId) -> bool:
        return self._find(layer).state is LayerState.RESIDENT

    def needs_save(self, layer: LayerId) -> bool:
        """Return True if the host copy differs, or may still differ, from the device copy."""
        entry = self._find(layer)
        return entry.is_dirty or entry.is_saving

    def evictable_size(self, layer: LayerId) -> int:
        """Return the bytes that evicting the layer would free now; 0 if it may not be evicted."""
        entry = self._evictable.get(layer)
        return entry.size_bytes if entry else 0

    def evictable(self) -> Iterator[Candidate]:
        """Yield the clean layers that are not in use, the least recently used first."""
        for last_used, layer in self._by_age:
            yield Candidate(layer, self._evictable[layer].size_bytes, last_used)

    def unsaved(self) -> list[Candidate]:
        """Return the dirty layers that are neither in use nor being saved, oldest first."""
        unsaved = self._unsaved.items()
        return [Candidate(layer, row.size_bytes, row.last_used) for layer, row in unsaved]

    def load(self, layer: LayerId) -> None:
        self._expect(layer, self._find(layer).state is LayerState.ABSENT, "loaded", "absent")
        size_bytes = self._size_of(layer)
        if size_bytes > self.free_bytes:
            raise InvariantError(
                f"layer {layer} of {size_bytes} bytes cannot be loaded: expected room within the "
                f"budget of {self.budget_bytes} bytes, found {self.used_bytes} in use"
            )
        self._entries[layer] = entry = _Entry(size_bytes, self._is_permanent(layer))
        self._use(entry)
        self.used_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self.num_loading += 1

    def loaded(self, layer: LayerId) -> None:
        entry = self._find(layer)
        self._expect(layer, entry.state is LayerState.LOADING, "told as loaded", "loading")
        entry.state = LayerState.RESIDENT
        self.num_loading -= 1
        self._settle(layer, entry)

    def pin(self, layer: LayerId) -> None:
        """Pin a layer on the device; pins are counted."""
        entry = self._find(layer)
        self._expect(layer, entry.state is LayerState.RESIDENT, "pinned", "resident")
        self.num_pinned += entry.pins == 0
        entry.pins += 1
        if entry.pins == 1:  # before `_use`: it is found among the evictable by its old age
            self._settle(layer, entry)
        self._use(entry)

    def unpin(self, layer: LayerId, wrote: bool) -> None:
        """Remove one pin; ``wrote`` is True if the device copy was changed while pinned."""
        entry = self._find(layer)
        is_held = entry.state is LayerState.RESIDENT and entry.pins > 0
        self._expect(layer, is_held, "written" if wrote else "released", "resident and pinned")
        entry.pins -= 1
        entry.is_dirty |= wrote and entry.size_bytes > 0
        self.uses_over += 1
        self._use(entry)
        self.num_pinned -= entry.pins == 0
        if entry.pins == 0:
            self.gains += 1
            self._settle(layer, entry)

    def save(self, layer: LayerId) -> None:
        entry = self._find(layer)
        is_ready = entry.is_idle and entry.is_dirty
        self._expect(layer, is_ready, "saved", "resident, dirty and not in use")
        entry.is_dirty, entry.is_saving = False, True
        self.num_saving += 1
        self._settle(layer, entry)

    def saved(self, layer: LayerId) -> None:
        """Record that a save has finished; the layer is still dirty if it was written meanwhile."""
        entry = self._find(layer)
        self._expect(layer, entry.is_saving, "told as saved", "being saved")
        entry.is_saving = False
        self.num_saving -= 1
        self._settle(layer, entry)

    def evict(self, layer: LayerId) -> None:
        is_free = layer in self._evictable
        self._expect(layer, is_free, "evicted", "resident, clean, not in use and not permanent")
        entry = self._entries.pop(layer)
        self._withdraw(layer, entry)
        self.used_bytes -= entry.size_bytes
        self.gains += 1

    def _find(self, layer: LayerId) -> _Entry:
        entry = self._entries.get(layer)
        if entry is not None:
            return entry
        if self._size_of(layer):
            return _ABSENT
        self._entries[layer] = entry = _Entry(0, True, LayerState.RESIDENT)
        return entry

    def _use(self, entry: _Entry) -> None:
        self._uses += 1
        entry.last_used = self._uses

    def _settle(self, layer: LayerId, entry: _Entry) -> None:
        """Move a changed entry to its collection: evictable, unsaved, or neither."""
        is_idle = entry.is_idle
        if is_idle and entry.is_dirty:
            self._unsaved[layer] = entry
        else:
            self._unsaved.pop(layer, None)
        is_evictable = is_idle and not entry.is_dirty
        if is_evictable == (layer in self._evictable):
            return
        if is_evictable:
            self._evictable[layer] = entry
            insort(self._by_age, (entry.last_used, layer))
            self.evictable_bytes += entry.size_bytes
            self.gains += 1
        else:
            self._withdraw(layer, entry)

    def _withdraw(self, layer: LayerId, entry: _Entry) -> None:
        del self._evictable[layer]
        del self._by_age[bisect_left(self._by_age, (entry.last_used, layer))]
        self.evictable_bytes -= entry.size_bytes

    def _expect(self, layer: LayerId, is_good: bool, what: str, expected: str) -> None:
        if not is_good:
            found = self._entries.get(layer, _ABSENT)
            raise InvariantError(f"layer {layer} to be {what}: expected {expected}, found {found}")

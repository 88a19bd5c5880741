"""Which layers two logs do not agree on: both are read side by side, and what agrees is let go.

The logs of equal runs have the same records of each layer, at other times. So the n-th record of a
layer is held against the n-th of the other log, as soon as both are there. What waits is the
difference in progress of two readers, some subnets' records, however long the logs are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from naspipe.config.ids import LayerId
from naspipe.trace.access.columns import WRITE, AccessColumns, Integers, Small
from naspipe.trace.access.log import RunLog
from naspipe.trace.access.stored import Wanted

_BITS = 40
"""Of a key: for the number of a record of its layer, or its sequence ID."""
_Whole = Integers | Small
_FORWARDS_AND_WRITES = Wanted(backwards=False)


class _Records(NamedTuple):
    """Records by key: which layer, which kind of order, and the place in it."""

    keys: Integers
    sequence_ids: Integers
    kinds: NDArray[np.int8]
    versions: Integers

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> _Records:
        columns: list[Any] = [column[rows] for column in self]
        return _Records(*columns)

    def sorted_with(self, more: _Records) -> _Records:
        sides: tuple[Any, Any] = (self, more)
        columns: list[Any] = [np.concatenate(pair) for pair in zip(*sides, strict=True)]
        return _Records(*columns).take(np.argsort(columns[0], kind="stable"))


def unequal_layers(
    expected: RunLog,
    found: RunLog,
    is_exact: Callable[[LayerId], bool],
    wanted: Wanted = _FORWARDS_AND_WRITES,
) -> set[LayerId]:
    """Layers whose READs and WRITEs differ, or may: equal ones are surely equal.

    Args:
        expected: a log.
        found: another one.
        is_exact: of a layer, whether the order of all its accesses counts. Of others READs are
            compared in sequence order and WRITEs as they came.
        wanted: which records to compare.

    Returns:
        All layers where one of the logs has digests of what was written.

    Raises:
        LogError: when what is read is damaged.
    """
    layers = sorted({*expected.layers, *found.layers})
    sides = (
        _Side(expected, layers, is_exact, wanted),
        _Side(found, layers, is_exact, wanted),
    )
    unequal = np.zeros(len(layers), np.bool_)
    while not all(side.is_over for side in sides):
        behind = min((side for side in sides if not side.is_over), key=lambda side: side.count)
        if not behind.advance():
            return set(layers)
        _match(*sides, unequal)
    for side in sides:
        unequal[side.layers_of(side.waiting)] = True
    return {layers[number] for number in np.flatnonzero(unequal).tolist()}


def _match(one: _Side, other: _Side, unequal: NDArray[np.bool_]) -> None:
    """Let go what both have, and what is of layers that are known to differ."""
    for side in (one, other):
        keys = side.waiting.keys
        doubled = keys[1:][keys[1:] == keys[:-1]]
        unequal[side.layers_of_keys(doubled)] = True
    _, left, right = np.intersect1d(one.waiting.keys, other.waiting.keys, return_indices=True)
    mine, theirs = one.waiting.take(left), other.waiting.take(right)
    differ = np.zeros(len(left), np.bool_)
    for column, its in zip(mine[1:], theirs[1:], strict=True):
        differ |= column != its
    unequal[one.layers_of_keys(mine.keys[differ])] = True
    for side, rows in ((one, left), (other, right)):
        stays = ~unequal[side.layers_of(side.waiting)]
        stays[rows] = False
        side.waiting = side.waiting.take(stays)


class _Side:
    """One log, as far as it was read: its records that wait for the other's."""

    def __init__(
        self,
        log: RunLog,
        layers: Sequence[LayerId],
        is_exact: Callable[[LayerId], bool],
        wanted: Wanted,
    ) -> None:
        self._parts: Iterator[AccessColumns] = log.parts(wanted)
        table = np.array(layers, np.int64).reshape(-1, 3)
        self._sizes = [int(each) + 1 for each in table.max(axis=0, initial=0)]
        self._codes = self._code(*table.T)
        self._is_exact = np.array([is_exact(layer) for layer in layers], np.bool_)
        self._seen = np.zeros(len(layers), np.int64)
        empty = np.empty(0, np.int64)
        self.waiting = _Records(empty, empty, empty.astype(np.int8), empty)
        self.count = 0
        self.is_over = False

    def advance(self) -> bool:
        """Take the next part in; False for one that cannot be compared like that."""
        part = next(self._parts, None)
        if part is None:
            self.is_over = True
            return True
        if part.digest or prod(self._sizes) >= 1 << 62 or part.sequence_id.max() >= 1 << _BITS:
            return False
        self.count += len(part)
        self.waiting = self.waiting.sorted_with(self._records(part))
        return True

    def layers_of(self, records: _Records) -> NDArray[np.int64]:
        """The layer of each record, by its number."""
        return self.layers_of_keys(records.keys)

    @staticmethod
    def layers_of_keys(keys: Integers) -> NDArray[np.int64]:
        """The same of keys."""
        return keys >> (_BITS + 1)

    def _records(self, part: AccessColumns) -> _Records:
        layers = np.searchsorted(self._codes, self._code(part.stream, part.block, part.candidate))
        in_sequence = ~self._is_exact[layers] & (part.kind != WRITE)
        places = np.empty(len(part), np.int64)
        places[in_sequence] = part.sequence_id[in_sequence]
        places[~in_sequence] = self._numbered(layers[~in_sequence])
        keys = (((layers.astype(np.int64) << 1) | in_sequence) << _BITS) | places
        return _Records(keys, part.sequence_id, part.kind, part.version)

    def _numbered(self, layers: NDArray[np.intp]) -> Integers:
        """How many records of its layer came before each one."""
        order = np.argsort(layers, kind="stable")
        sorted_ = layers[order]
        begins = np.searchsorted(sorted_, sorted_)
        found = np.empty(len(layers), np.int64)
        found[order] = np.arange(len(layers)) - begins + self._seen[sorted_]
        self._seen += np.bincount(layers, minlength=len(self._seen))
        return found

    def _code(self, streams: _Whole, blocks: _Whole, candidates: _Whole) -> Integers:
        _, most_blocks, most_candidates = self._sizes
        wide = streams.astype(np.int64) * most_blocks + blocks
        return wide * most_candidates + candidates

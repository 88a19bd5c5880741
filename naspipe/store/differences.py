"""Find the differences between two runs of one definition.

Access logs are compared in two steps, because they may not fit in memory: a pass over both logs in
order of time finds the layers that differ, and only those are then read and compared in detail.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from naspipe.config.ids import INITIAL, AccessKind, LayerId
from naspipe.store.access_columns import (
    BACKWARD,
    WRITE,
    AccessColumns,
    Integers,
    Small,
    from_accesses,
)
from naspipe.store.access_log import RunLog
from naspipe.store.access_order import SharedSpan, by_steps, groups_of_layers, layer_order
from naspipe.store.access_segments import Wanted
from naspipe.store.checkpoints import Checkpoint
from naspipe.store.labels import SpaceLabels
from naspipe.store.losses import Loss
from naspipe.store.shards import ITEM_BYTES, RawTensor

_WHATS = (
    "version read",
    "order of WRITEs",
    "access order",
    "written bytes",
    "tensor",
    "version",
    "scalar",
    "loss",
    "metric",
)
_FINAL_STATE = ("tensor", "version", "scalar")


_First = tuple[int, str, str]
"""Sequence ID, kind and detail of a difference."""


class Difference(NamedTuple):
    """One place where two runs differ.

    ``sequence_id`` is the pass. For final state, it is the earlier of the layer's last WRITEs in
    both runs; -1 is the state before any WRITE. ``layer`` is the label, empty for a loss or a
    metric; ``block`` is its place in the chain, or past the last block for a loss or a metric.
    """

    stream: int
    sequence_id: int
    block: int
    layer: str
    what: str
    detail: str

    @property
    def key(self) -> tuple[int, int, int, int, str, str]:
        """Sort key: by pass, then by block of the chain, then by stream and kind."""
        place = _WHATS.index(self.what)
        return (self.sequence_id, self.block, self.stream, place, self.layer, self.detail)

    def __str__(self) -> str:
        where = f"step {self.sequence_id}" if self.sequence_id >= 0 else "before step 0"
        if self.what in _FINAL_STATE:
            where = f"final state, last written {'at ' * (self.sequence_id >= 0)}{where}"
        stream = f"stream {self.stream}, " if self.stream else ""
        layer = f", layer {self.layer}" if self.layer else ""
        return f"{stream}{where}{layer}: {self.what}: {self.detail}"


def loss_differences(
    expected: Iterable[Loss], found: Iterable[Loss], labels: SpaceLabels
) -> Iterator[Difference]:
    """Yield every pass whose losses differ in their bits or exist in one run only."""
    for key, one, other in _pairs(expected, found):
        if one is None or other is None or one.bits != other.bits:
            detail = f"{_loss_text(one)} against {_loss_text(other)}"
            yield Difference(*key, len(labels), "", "loss", detail)
            continue
        others = dict(other.beside.metrics)
        for name, metric in one.beside.metrics:
            if name in others and others[name].bits != metric.bits:
                detail = f"{name} {metric.value!r} against {others[name].value!r}"
                yield Difference(*key, len(labels), "", "metric", detail)


def _pairs(
    expected: Iterable[Loss], found: Iterable[Loss]
) -> Iterator[tuple[tuple[int, int], Loss | None, Loss | None]]:
    """Pair the losses of each pass as they are read; losses of only one run come last."""
    waiting: tuple[dict[tuple[int, int], Loss], ...] = ({}, {})
    for both in zip_longest(expected, found):
        for side, loss in enumerate(both):
            if loss is not None:
                waiting[side][loss.stream, loss.sequence_id] = loss
        for loss in filter(None, both):
            key = loss.stream, loss.sequence_id
            if all(key in own for own in waiting):
                one, other = (own.pop(key) for own in waiting)
                yield key, one, other
    for key in sorted({*waiting[0], *waiting[1]}):
        yield key, waiting[0].get(key), waiting[1].get(key)


def access_differences(
    expected: AccessColumns, found: AccessColumns, labels: SpaceLabels, passes: int = 1
) -> Iterator[Difference]:
    """Yield each layer's first difference of each kind: versions read, orders, written bytes.

    Both logs must be in order of time. If a step has several ``passes``, orders are by step; see
    :func:`naspipe.store.access_order.by_steps`.
    """
    left, right = (side.take(side.kind != BACKWARD).by_layer() for side in (expected, found))
    nothing = from_accesses(())
    for layer in sorted(left.keys() | right.keys()):
        columns = left.get(layer, nothing), right.get(layer, nothing)
        is_exact = labels.is_exact(layer)
        if _agree(*columns, is_exact):
            continue
        one, other = (list(side.accesses()) for side in columns)
        reads = [[a for a in side if a.kind is not AccessKind.WRITE] for side in (one, other)]
        writes = [[a for a in side if a.kind is AccessKind.WRITE] for side in (one, other)]
        first: list[_First | None] = []

        versions = [{a.sequence_id: a.version for a in side} for side in reads]
        passes_read = versions[0].keys() | versions[1].keys()
        unlike = [y for y in passes_read if versions[0].get(y) != versions[1].get(y)]
        if unlike:
            y = min(unlike)
            texts = [str(side.get(y, "absent")) for side in versions]
            first.append((y, "version read", f"{texts[0]} against {texts[1]}"))

        first.append(_first_order("order of WRITEs", *map(layer_order, writes)))
        if is_exact:
            orders = (layer_order(by_steps(side, passes)) for side in (one, other))
            first.append(_first_order("access order", *orders))

        digests = [{a.sequence_id: a.digest for a in side if a.digest} for side in writes]
        both = digests[0].keys() & digests[1].keys()
        if unlike := [y for y in both if digests[0][y] != digests[1][y]]:
            y = min(unlike)
            texts = [side[y][:16] for side in digests]
            first.append((y, "written bytes", f"{texts[0]} against {texts[1]}"))

        for sequence_id, what, detail in filter(None, first):
            label = labels.label(layer)
            yield Difference(layer.stream, sequence_id, layer.block, label, what, detail)


def _first_order(
    what: str, expected: list[tuple[int, str]], found: list[tuple[int, str]]
) -> _First | None:
    for place, (one, other) in enumerate(zip_longest(expected, found)):
        if one != other:
            texts = [f"{use[0]}{use[1]}" if use else "absent" for use in (one, other)]
            sequence_id = min(use[0] for use in (one, other) if use)
            return sequence_id, what, f"{texts[0]} against {texts[1]} at place {place}"
    return None


def _agree(one: AccessColumns, other: AccessColumns, is_exact: bool) -> bool:
    """Return True if a layer's READs and WRITEs surely have no relevant difference."""
    names = ("sequence_id", "kind", "version")
    if len(one) != len(other) or one.digest or other.digest:
        return one.digest == other.digest and _same(one, other, names)
    if is_exact:
        return _same(one, other, names)
    writes, other_writes = (side.take(side.kind == WRITE) for side in (one, other))
    in_order = (side.take(np.argsort(side.sequence_id, kind="stable")) for side in (one, other))
    reads, other_reads = (side.take(side.kind != WRITE) for side in in_order)
    return _same(writes, other_writes, ("sequence_id",)) and _same(
        reads, other_reads, ("sequence_id", "version")
    )


def _same(one: AccessColumns, other: AccessColumns, names: Iterable[str]) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def checkpoint_differences(
    expected: Checkpoint, found: Checkpoint, labels: SpaceLabels
) -> Iterator[Difference]:
    """Yield every tensor, version and scalar that differs or that only one run has."""
    pairs: tuple[tuple[str, Mapping[str, Any], Mapping[str, Any]], ...] = (
        ("tensor", expected.tensors, found.tensors),
        ("version", expected.versions, found.versions),
        ("scalar", expected.scalars, found.scalars),
    )
    for what, left, right in pairs:
        for name in sorted(left.keys() | right.keys()):
            one, other = left.get(name), right.get(name)
            if name in left and name in right and _is_same(one, other):
                continue
            stream, layer, rest = (*name.split("/", 2), "", "")[:3]
            version = min(
                checkpoint.versions.get(f"{stream}/{layer}", INITIAL)
                for checkpoint in (expected, found)
            )
            if isinstance(one, RawTensor) and isinstance(other, RawTensor):
                detail = _tensor_text(one, other)
            else:
                values = (side.get(name, "absent") for side in (left, right))
                texts = [
                    _kind_text(v) if isinstance(v, RawTensor) else v if v == "absent" else repr(v)
                    for v in values
                ]
                detail = f"{texts[0]} against {texts[1]}"
            block = layer.partition(".")[0]
            yield Difference(
                int(stream) if stream.isdigit() else 0,
                version,
                labels.labels.index(block) if block in labels.labels else len(labels),
                layer,
                what,
                f"{rest} {detail}" if rest else detail,
            )


def _is_same(one: Any, other: Any) -> bool:
    """Compare type and every bit: -0.0 is not 0.0, and NaNs are compared by their payload."""
    if isinstance(one, float) and isinstance(other, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    return type(one) is type(other) and bool(one == other)


def _loss_text(loss: Loss | None) -> str:
    return "absent" if loss is None else f"{loss.value!r} ({loss.bits})"


def _kind_text(tensor: RawTensor) -> str:
    return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"


def _tensor_text(one: RawTensor, other: RawTensor) -> str:
    """Describe dtypes and shapes, or how many elements differ and the bits of the first one."""
    if one[:2] != other[:2]:
        return f"{_kind_text(one)} against {_kind_text(other)}"
    size = ITEM_BYTES[one.dtype]
    left, right = (np.frombuffer(t.data, np.uint8).reshape(-1, size) for t in (one, other))
    differing = np.flatnonzero((left != right).any(axis=1))
    first = int(differing[0]) * size
    bits = [tensor.data[first : first + size][::-1].hex() for tensor in (one, other)]
    return (
        f"{len(differing)} of {len(one.data) // size} elements differ, first element "
        f"{first // size}: bits {bits[0]} against {bits[1]}"
    )


_BITS = 40
"""Low bits of a key: the number of a record within its layer, or its sequence ID."""
_FORWARDS_AND_WRITES = Wanted(backwards=False)


class _Records(NamedTuple):
    """Records by key: layer, kind of order (1 bit), and place in that order (40 bits)."""

    keys: Integers
    sequence_ids: Integers
    kinds: NDArray[np.int8]
    versions: Integers

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> _Records:
        columns: list[Any] = [column[rows] for column in self]
        return _Records(*columns)


def unequal_layers(
    expected: RunLog,
    found: RunLog,
    is_exact: Callable[[LayerId], bool],
    wanted: Wanted = _FORWARDS_AND_WRITES,
) -> set[LayerId]:
    """Return the layers whose READs and WRITEs may differ; all other layers are equal.

    For layers that are not exact, READs are compared in sequence order and WRITEs in log order. If
    a log has digests of the written bytes, all layers are returned.

    Raises:
        LogError: if a record is damaged.
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
        unequal[side.waiting.keys >> (_BITS + 1)] = True
    return {layers[number] for number in np.flatnonzero(unequal).tolist()}


def _match(one: _Side, other: _Side, unequal: NDArray[np.bool_]) -> None:
    """Drop the records that both sides have, and those of layers that are known to differ."""
    for side in (one, other):
        keys = side.waiting.keys
        unequal[keys[1:][keys[1:] == keys[:-1]] >> (_BITS + 1)] = True
    _, left, right = np.intersect1d(one.waiting.keys, other.waiting.keys, return_indices=True)
    mine, theirs = one.waiting.take(left), other.waiting.take(right)
    differ = np.zeros(len(left), np.bool_)
    for column, its in zip(mine[1:], theirs[1:], strict=True):
        differ |= column != its
    unequal[mine.keys[differ] >> (_BITS + 1)] = True
    for side, rows in ((one, left), (other, right)):
        stays = ~unequal[side.waiting.keys >> (_BITS + 1)]
        stays[rows] = False
        side.waiting = side.waiting.take(stays)


class _Side:
    """One log as far as it has been read; ``waiting`` are records not yet found in the other."""

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
        """Read the next part; return False if it cannot be compared in this way."""
        part = next(self._parts, None)
        if part is None:
            self.is_over = True
            return True
        if part.digest or prod(self._sizes) >= 1 << 62 or part.sequence_id.max() >= 1 << _BITS:
            return False
        self.count += len(part)

        layers = np.searchsorted(self._codes, self._code(part.stream, part.block, part.candidate))
        in_sequence = ~self._is_exact[layers] & (part.kind != WRITE)
        places = np.empty(len(part), np.int64)
        places[in_sequence] = part.sequence_id[in_sequence]
        places[~in_sequence] = self._numbered(layers[~in_sequence])
        keys = (((layers.astype(np.int64) << 1) | in_sequence) << _BITS) | places
        sides: Any = (self.waiting, (keys, part.sequence_id, part.kind, part.version))
        columns = [np.concatenate(pair) for pair in zip(*sides, strict=True)]
        self.waiting = _Records(*columns).take(np.argsort(columns[0], kind="stable"))
        return True

    def _numbered(self, layers: NDArray[np.intp]) -> Integers:
        """Return, for each record, the number of earlier records of its layer."""
        order = np.argsort(layers, kind="stable")
        sorted_ = layers[order]
        begins = np.searchsorted(sorted_, sorted_)
        found = np.empty(len(layers), np.int64)
        found[order] = np.arange(len(layers)) - begins + self._seen[sorted_]
        self._seen += np.bincount(layers, minlength=len(self._seen))
        return found

    def _code(
        self, streams: Integers | Small, blocks: Integers | Small, candidates: Integers | Small
    ) -> Integers:
        _, most_blocks, most_candidates = self._sizes
        wide = streams.astype(np.int64) * most_blocks + blocks
        return wide * most_candidates + candidates


def log_differences(
    expected: RunLog,
    found: RunLog,
    labels: SpaceLabels,
    passes: int = 1,
    spans: Iterable[SharedSpan] = (SharedSpan(0, None, 1),),
) -> Iterator[Difference]:
    """Yield the :func:`access_differences` in the steps of ``spans``, which both logs have."""
    counts: Counter[LayerId] = Counter(expected.layers)
    counts.update(found.layers)
    for span in spans:
        if not span.every:
            continue
        wanted = Wanted(
            first=span.first, end=span.end, backwards=False, every=span.every, passes=passes
        )
        unequal = unequal_layers(expected, found, labels.is_exact, wanted)
        for group in groups_of_layers({layer: counts[layer] for layer in unequal}):
            own = wanted._replace(layers=group)
            sides = expected.columns(own), found.columns(own)
            yield from access_differences(*sides, labels, passes)

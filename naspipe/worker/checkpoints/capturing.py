"""Copy layers for a checkpoint while training waits.

A layer has dozens of small tensors, and the overhead per tensor exceeds the time to copy its bytes.
Everything that does not change between checkpoints is therefore computed only once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from ctypes import memmove
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from naspipe.config.ids import Version
from naspipe.store.shards import Listing
from naspipe.worker.checkpoints.restored import (
    Captured,
    LayerSnapshot,
    Span,
    checksum,
    dtype_name,
    in_a_row,
)
from naspipe.worker.layers.stored_layer import StoredLayer

_State = Mapping[str, Any]
_NO_STATE: _State = {}


class _Form(NamedTuple):
    """The arrangement of a layer's tensors when they were last copied."""

    keys: tuple[tuple[str, ...], ...]  # the keys of each parameter's optimizer state
    addresses: list[int]
    """Addresses in host memory. No device address equals a host address."""
    buffers: tuple[Mapping[str, Any], ...]
    """The buffer dicts of the modules, which were empty."""
    listing: Listing


class Capturer:
    """Copies layers for successive checkpoints."""

    def __init__(self) -> None:
        self._forms: WeakKeyDictionary[StoredLayer, _Form] = WeakKeyDictionary()
        self._names: dict[object, tuple[str, ...]] = {}
        self._listings: dict[object, Listing] = {}

    def capture(
        self, stored: StoredLayer, versions: tuple[Version, ...], into: Captured
    ) -> LayerSnapshot:
        """Copy a layer's state; for versions before the last one, copy only the parameters."""
        stored.at_hand()
        form = self._form(stored) if len(versions) == 1 else None
        if form is None:
            return self._capture_any(stored, versions, into)
        listing = form.listing
        crc = _copy(form, into.reserve(listing.nbytes, listing.item_bytes))
        return LayerSnapshot(versions, ((listing, crc),), {}, {})

    def _form(self, stored: StoredLayer) -> _Form | None:
        """Return the form; None unless all tensors are plain, of one dtype and in host memory."""
        state = {} if stored.optimizer is None else stored.optimizer.state
        states = [state.get(parameter, _NO_STATE) for parameter in stored.parameters.values()]
        values: list[Any] = [*stored.parameters.values()]
        for of_parameter in states:
            values += of_parameter.values()
        keys = tuple(map(tuple, states))
        form = self._forms.get(stored)
        if form is None or form.keys != keys or form.addresses != _addresses(values):
            addresses = _addresses(values)
            dtype = values[0].dtype if addresses else None
            if (
                dtype is None
                or dtype.is_complex
                or not all(
                    value.dtype == dtype
                    and value.is_cpu
                    and value.layout == torch.strided
                    and value.is_contiguous()
                    and not value.is_neg()
                    for value in values
                )
            ):
                return None
            key = tuple(stored.parameters), keys
            if key not in self._names:
                names = [f"param/{name}" for name in stored.parameters]
                for name, of_parameter in zip(stored.parameters, keys, strict=True):
                    names += [f"optimizer/{name}/{each}" for each in of_parameter]
                self._names[key] = tuple(names)
            listing = self._listing(dtype, self._names[key], values)
            buffers = tuple(module._buffers for module in stored.module.modules())
            form = self._forms[stored] = _Form(keys, addresses, buffers, listing)
        return None if any(form.buffers) else form

    def _capture_any(
        self, stored: StoredLayer, versions: tuple[Version, ...], into: Captured
    ) -> LayerSnapshot:
        scalars: dict[str, Any] = {}
        strides: dict[str, Sequence[int]] = {}
        alike: dict[tuple[torch.dtype, bool], dict[str, torch.Tensor]] = defaultdict(dict)
        copies = stored.copies(versions[:-1])
        older = ((f"version/{version}/{name}", value) for version, name, value in copies)
        for name, value in chain(stored.tensors(), older):
            if isinstance(value, torch.Tensor):
                alike[value.dtype, value.is_cpu][name] = value
                if not value.is_contiguous():
                    strides[name] = value.stride()
            else:
                scalars[name] = value
        kept = []
        for (dtype, _), tensors in alike.items():
            listing = self._listing(dtype, tuple(tensors), tensors.values(), len(versions) == 1)
            spans = into.keep(in_a_row(tensors.values()), listing.item_bytes)
            kept.append((listing, checksum(spans)))
        return LayerSnapshot(versions, tuple(kept), scalars, strides)

    def _listing(
        self,
        dtype: torch.dtype,
        names: tuple[str, ...],
        tensors: Iterable[torch.Tensor],
        comes_again: bool = True,
    ) -> Listing:
        shapes = tuple([tensor.shape for tensor in tensors])
        key = dtype, names, shapes
        listing = self._listings.get(key)
        if listing is None:
            listing = Listing(dtype_name(dtype), tuple(zip(names, shapes, strict=True)))
            if comes_again:
                self._listings[key] = listing
        return listing


def _addresses(values: Sequence[Any]) -> list[int]:
    """Return the addresses of tensors; empty if one of the values is not a tensor."""
    try:
        return [value.data_ptr() for value in values]
    except AttributeError:
        return []


def _copy(form: _Form, spans: Sequence[Span]) -> int:
    """Copy all tensors into the spans, and return the CRC32 of their bytes."""
    if len(spans) == 1:
        address = spans[0].address
        for source, nbytes in zip(form.addresses, form.listing.sizes, strict=True):
            memmove(address, source, nbytes)
            address += nbytes
        return checksum(spans)
    targets = iter(spans)
    address = left = 0
    for source, nbytes in zip(form.addresses, form.listing.sizes, strict=True):
        while nbytes:
            if not left:
                span = next(targets)
                address, left = span.address, len(span.view)
            fits = min(nbytes, left)
            memmove(address, source, fits)
            address, left = address + fits, left - fits
            source, nbytes = source + fits, nbytes - fits
    return checksum(spans)

"""Layers copied for a checkpoint, while training waits.

A layer has dozens of small tensors, and what is done for each of them takes longer than copying
its bytes. What stays the same from one checkpoint to the next is therefore found once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from ctypes import memmove
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch

from naspipe.core.ids import Version
from naspipe.runtime.checkpoints.capture_memory import Lease
from naspipe.runtime.checkpoints.layer_bytes import dtype_name, to_packed
from naspipe.runtime.checkpoints.restored import LayerSnapshot
from naspipe.runtime.layers.stored_layer import StoredLayer
from naspipe.trace.snapshots.shards import Packed, Shape

_State = Mapping[str, Any]
_NO_STATE: _State = {}


@dataclass(slots=True)
class _Form:
    """What a layer's tensors are, in the order in which they are found, while it has these keys."""

    keys: tuple[tuple[str, ...], ...]
    buffers: tuple[Mapping[str, Any], ...]
    """Where the layer's modules keep theirs."""
    dtype: str
    tensors: tuple[tuple[str, Shape], ...]
    sizes: tuple[int, ...]
    """In bytes."""
    addresses: list[int] = field(default_factory=list)
    """Where all of them were in host memory, when they were looked at last."""


class Capturer:
    """Copies layers, each of them for one checkpoint after another."""

    def __init__(self) -> None:
        self._forms: WeakKeyDictionary[StoredLayer, _Form] = WeakKeyDictionary()
        self._tensors: dict[object, tuple[tuple[str, Shape], ...]] = {}

    def capture(
        self, stored: StoredLayer, versions: tuple[Version, ...], memory: Lease
    ) -> LayerSnapshot:
        """Copy a layer's state, wherever it is; of all versions but the last the parameters only.

        Raises:
            InvariantError: when one of the versions is not here.
        """
        stored.at_hand()
        if len(versions) == 1:
            states = _states(stored)
            values = [*stored.parameters.values()]
            for state in states:
                values += state.values()
            form = self._form(stored, states, values)
            if form.dtype and not any(form.buffers) and _are_on_host(form, values):
                return LayerSnapshot(versions, (_copy(form, memory),), {}, {})
        return _capture_any(stored, versions, memory)

    def _form(self, stored: StoredLayer, states: Sequence[_State], values: Sequence[Any]) -> _Form:
        keys = tuple(map(tuple, states))
        form = self._forms.get(stored)
        if form is None or form.keys != keys:
            form = _find_form(stored, keys, values)
            form.tensors = self._tensors.setdefault(form.tensors, form.tensors)
            self._forms[stored] = form
        return form


def _states(stored: StoredLayer) -> list[_State]:
    """What the optimizer keeps of each parameter."""
    state = {} if stored.optimizer is None else stored.optimizer.state
    return [state.get(parameter, _NO_STATE) for parameter in stored.parameters.values()]


def _find_form(
    stored: StoredLayer, keys: tuple[tuple[str, ...], ...], values: Sequence[Any]
) -> _Form:
    """The form of a layer; without a dtype when its bytes cannot be copied one after another."""
    buffers = tuple(module._buffers for module in stored.module.modules())
    irregular = _Form(keys, buffers, "", (), ())
    if not values or not all(isinstance(value, torch.Tensor) for value in values):
        return irregular
    dtype = values[0].dtype
    if not all(value.dtype == dtype and _is_plain(value) for value in values):
        return irregular
    names = [f"param/{name}" for name in stored.parameters]
    for name, of_parameter in zip(stored.parameters, keys, strict=True):
        names += [f"optimizer/{name}/{key}" for key in of_parameter]
    tensors = tuple((name, value.shape) for name, value in zip(names, values, strict=True))
    return _Form(keys, buffers, dtype_name(dtype), tensors, tuple(v.nbytes for v in values))


def _is_plain(value: torch.Tensor) -> bool:
    is_dense = value.layout == torch.strided and not value.is_conj() and not value.is_neg()
    return is_dense and value.is_contiguous()


def _are_on_host(form: _Form, values: Sequence[torch.Tensor]) -> bool:
    """Look where they are. No device has an address that host memory has."""
    addresses = [value.data_ptr() for value in values]
    if addresses == form.addresses:
        return True
    if is_there := all(value.is_cpu for value in values):
        form.addresses = addresses
    return is_there


def _copy(form: _Form, memory: Lease) -> Packed:
    data, address = memory.reserve(sum(form.sizes))
    for source, nbytes in zip(form.addresses, form.sizes, strict=True):
        memmove(address, source, nbytes)
        address += nbytes
    return Packed(form.dtype, form.tensors, data)


def _capture_any(
    stored: StoredLayer, versions: tuple[Version, ...], memory: Lease
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
    packed = tuple(to_packed(tensors, memory) for tensors in alike.values())
    return LayerSnapshot(versions, packed, scalars, strides)

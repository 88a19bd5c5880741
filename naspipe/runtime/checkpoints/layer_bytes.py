"""Layers as raw bytes for a checkpoint, and back into modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors

from naspipe.config.errors import ConfigError
from naspipe.config.ids import LayerId
from naspipe.config.space import Space
from naspipe.runtime.devices.device_waits import Wait, on_host
from naspipe.runtime.layers.buffers import drop_buffers, fill_buffer, slot_of
from naspipe.runtime.stepping.around_step import AVERAGE
from naspipe.trace.snapshots.shards import RawTensor

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def layer_key(space: Space, layer: LayerId) -> str:
    """How checkpoints call a layer: ``stream/label``."""
    return f"{layer.stream}/{space.label(layer.block, layer.candidate)}"


def in_a_row(tensors: Iterable[torch.Tensor]) -> memoryview:
    """The bytes of tensors of one dtype, on one device, without a graph, each row by row."""
    flat: torch.Tensor = _flatten_dense_tensors(tuple(tensors))  # type: ignore[no-untyped-call]
    return on_host(flat, Wait.CAPTURE).view(torch.uint8).numpy().data


def dtype_name(dtype: torch.dtype) -> str:
    """What safetensors call it."""
    return _NAMES[dtype]


def from_raw(raw: RawTensor) -> torch.Tensor:
    """A new tensor with these bytes."""
    data = torch.frombuffer(bytearray(raw.data), dtype=torch.uint8) if raw.data else torch.empty(0)
    return data.view(_DTYPES[raw.dtype]).reshape(raw.shape)


def aligned(raw: RawTensor, strides: Sequence[int] | None) -> torch.Tensor:
    """The same in memory that torch has allocated, because alignment may decide over bits.

    Args:
        raw: the bytes.
        strides: of a tensor that is not contiguous; None for any other.
    """
    flat = from_raw(raw)
    if strides is None:
        return flat.clone()
    return torch.empty_strided(flat.shape, tuple(strides), dtype=flat.dtype).copy_(flat)


def load_layer(
    module: nn.Module, key: str, tensors: Mapping[str, RawTensor], ema: bool = False
) -> nn.Module:
    """Fill a module's parameters and buffers from a checkpoint.

    With ``ema`` it takes the parameters' moving averages; of those that were never stepped,
    and of buffers, the values themselves.

    Raises:
        ConfigError: when the checkpoint has no such layer.
    """
    state = {
        name.split("/", 3)[3]: from_raw(raw)
        for name, raw in tensors.items()
        if name.startswith((f"{key}/param/", f"{key}/buffer/"))
    }
    parameters = dict(module.named_parameters())
    expected = set(parameters) | set(dict(module.named_buffers()))
    is_whole = set(parameters) <= set(state) and bool(state or not expected)
    if not is_whole or not all(map(partial(_has_place, module), set(state) - expected)):
        raise ConfigError(
            f"layer {key}: the checkpoint holds {sorted(state) or 'nothing of it'}, "
            f"expected {sorted(expected)}"
        )
    if ema:
        averages = {name: f"{key}/optimizer/{name}/{AVERAGE}" for name in state}
        state |= {n: from_raw(tensors[each]) for n, each in averages.items() if each in tensors}
    with torch.no_grad():
        for name, value in state.items():
            if name in parameters:
                parameters[name].copy_(value)
            else:
                fill_buffer(module, name, value)
    drop_buffers(module, set(state))
    return module


def _has_place(module: nn.Module, name: str) -> bool:
    """Whether a forward of the module may have made such a buffer."""
    try:
        slot_of(module, name)
    except KeyError:
        return False
    return True

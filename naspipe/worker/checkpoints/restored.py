"""Layers in checkpoints: memory for captured bytes, and restoring layers on resume."""

from __future__ import annotations

import ctypes
import mmap
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import torch
from isal.isal_zlib import crc32
from torch import nn
from torch._utils import _flatten_dense_tensors

from naspipe.config.errors import ConfigError, LogError
from naspipe.config.ids import FIRST_STREAM, INITIAL, LayerId, StageId, StreamId, Version
from naspipe.config.space import Space
from naspipe.engine.events import KeptLayer
from naspipe.machine.device_waits import Wait, on_host
from naspipe.machine.staging import tensor_bytes
from naspipe.store.checkpoints import Checkpoint
from naspipe.store.shards import Listing, RawTensor
from naspipe.worker.layers.bound_layer import Gradients
from naspipe.worker.layers.kept_state import drop_buffers, fill_buffer, replace_buffer, slot_of
from naspipe.worker.layers.own_steps import AVERAGE
from naspipe.worker.layers.stored_layer import StoredLayer

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def layer_key(space: Space, layer: LayerId) -> str:
    """Return the name of a layer in checkpoints: ``stream/label``."""
    return f"{layer.stream}/{space.label(layer.block, layer.candidate)}"


def in_a_row(tensors: Iterable[torch.Tensor]) -> memoryview:
    """Return the concatenated bytes of tensors of one dtype and device, in row-major order."""
    flat: torch.Tensor = _flatten_dense_tensors(tuple(tensors))  # type: ignore[no-untyped-call]
    return on_host(flat, Wait.CAPTURE).view(torch.uint8).numpy().data


def dtype_name(dtype: torch.dtype) -> str:
    return _NAMES[dtype]


def from_raw(raw: RawTensor) -> torch.Tensor:
    data = torch.frombuffer(bytearray(raw.data), dtype=torch.uint8) if raw.data else torch.empty(0)
    return data.view(_DTYPES[raw.dtype]).reshape(raw.shape)


def aligned(raw: RawTensor, strides: Sequence[int] | None) -> torch.Tensor:
    """Return a tensor in memory allocated by torch, because alignment may affect results.

    ``strides`` are those of a tensor that is not contiguous, and None for any other.
    """
    flat = from_raw(raw)
    if strides is None:
        return flat.clone()
    return torch.empty_strided(flat.shape, tuple(strides), dtype=flat.dtype).copy_(flat)


def load_layer(
    module: nn.Module, key: str, tensors: Mapping[str, RawTensor], ema: bool = False
) -> nn.Module:
    """Fill a module's parameters and buffers from a checkpoint.

    With ``ema``, parameters that have been stepped are set to their moving averages.
    """
    state = {
        name.split("/", 3)[3]: from_raw(raw)
        for name, raw in tensors.items()
        if name.startswith((f"{key}/param/", f"{key}/buffer/"))
    }
    parameters = dict(module.named_parameters())
    expected = set(parameters) | set(dict(module.named_buffers()))
    fits = set(parameters) <= set(state) and bool(state or not expected)
    try:
        for name in set(state) - expected:
            slot_of(module, name)  # a forward may have made such a buffer
    except KeyError:
        fits = False
    if not fits:
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


BLOCK_BYTES = 4 * 1024 * 1024
"""Small enough that copied bytes are still in the cache when they are written."""


class Block:
    """A block of memory and its address."""

    def __init__(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, BLOCK_BYTES, flags=flags)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.view = memoryview(memory)


class CaptureMemory:
    """Blocks that are reused for successive checkpoints.

    Fresh memory costs more than the copies, because the kernel clears it page by page. Blocks may
    be given back on a different thread than the one that took them.
    """

    def __init__(self) -> None:
        self._free: deque[Block] = deque()

    def take(self) -> Block:
        try:
            return self._free.pop()
        except IndexError:
            return Block()

    def give_back(self, block: Block) -> None:
        self._free.append(block)


class Span:
    """A range of memory to be filled."""

    __slots__ = ("address", "view")

    def __init__(self, block: Block, begin: int, end: int) -> None:
        self.address = block.address + begin
        self.view = block.view[begin:end]


def checksum(spans: Iterable[Span], of_earlier: int = 0) -> int:
    """Return the CRC32 of the spans, continued from that of earlier bytes."""
    for span in spans:
        of_earlier = crc32(span.view, of_earlier)
    return of_earlier


class _Lane:
    """Blocks that are filled in sequence."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.used = BLOCK_BYTES  # used bytes of the last block


class Captured:
    """The bytes of one checkpoint, grouped by item size.

    Full blocks are passed on for the item size that first fills a block; all others are kept.
    ``hand_on`` receives a full block and gives it back to ``memory``.
    """

    def __init__(self, memory: CaptureMemory, hand_on: Callable[[Block], None]) -> None:
        self._memory = memory
        self._hand_on = hand_on
        self._lanes: dict[int, _Lane] = {}
        self.streamed_items = 0
        """Item size of the blocks that are passed on; 0 while no block is full."""

    def reserve(self, nbytes: int, item_bytes: int) -> Sequence[Span]:
        """Return memory for the next bytes of this item size, to be filled before the next call."""
        lane = self._lanes.get(item_bytes)
        if lane is None:
            lane = self._lanes[item_bytes] = _Lane()
        elif lane.used == BLOCK_BYTES or len(lane.blocks) > 1:
            self._hand_on_full(lane, item_bytes)
        spans = []
        while nbytes:
            if lane.used == BLOCK_BYTES:
                lane.blocks.append(self._memory.take())
                lane.used = 0
            begin, lane.used = lane.used, min(lane.used + nbytes, BLOCK_BYTES)
            spans.append(Span(lane.blocks[-1], begin, lane.used))
            nbytes -= lane.used - begin
        return spans

    def keep(self, data: memoryview, item_bytes: int) -> Sequence[Span]:
        spans = self.reserve(len(data), item_bytes)
        for span in spans:
            span.view[:] = data[: len(span.view)]
            data = data[len(span.view) :]
        return spans

    def end(self) -> None:
        for item_bytes, lane in self._lanes.items():
            self._hand_on_full(lane, item_bytes)

    @property
    def rest(self) -> dict[int, list[memoryview]]:
        return {
            item_bytes: [
                *(block.view for block in lane.blocks[:-1]),
                *(block.view[: lane.used] for block in lane.blocks[-1:]),
            ]
            for item_bytes, lane in self._lanes.items()
        }

    def give_back(self) -> None:
        for lane in self._lanes.values():
            for block in lane.blocks:
                self._memory.give_back(block)
        self._lanes.clear()

    def _hand_on_full(self, lane: _Lane, item_bytes: int) -> None:
        num_full = len(lane.blocks) - (lane.used < BLOCK_BYTES)
        if num_full and self.streamed_items in (0, item_bytes):
            self.streamed_items = item_bytes
            for block in lane.blocks[:num_full]:
                self._hand_on(block)
            del lane.blocks[:num_full]


class LayerSnapshot(NamedTuple):
    """One layer's captured state at a cut; names do not include the layer's name.

    ``versions`` are those that may still be read, oldest first; all but the last consist of
    parameters only. ``tensors`` are listings of one dtype each, with the CRC32 of their bytes.
    ``strides`` are those of tensors that are not contiguous.
    """

    versions: tuple[Version, ...]
    tensors: tuple[tuple[Listing, int], ...]
    scalars: Mapping[str, Any]
    strides: Mapping[str, Sequence[int]]


class _State(NamedTuple):
    """The same state as read from a checkpoint, with separate tensors."""

    versions: tuple[Version, ...]
    tensors: Mapping[str, RawTensor]
    scalars: Mapping[str, Any]
    strides: Mapping[str, Sequence[int]]


class Restored:
    """A checkpoint that a stream resumes from.

    ``stream`` is the stream's number in this pipeline; in its files it is the only stream.
    """

    def __init__(self, space: Space, stream: StreamId, checkpoint: Checkpoint) -> None:
        self.first = checkpoint.subnets
        self._space = space
        self._stream = stream
        self.checkpoint = checkpoint
        self._tensors = _by_layer(checkpoint.tensors)
        self._scalars = _by_layer(checkpoint.scalars)
        self._strides = _by_layer(checkpoint.strides)

    def layers(self, stages: Collection[StageId]) -> tuple[KeptLayer, ...]:
        """Return all layers in the checkpoint in chain order, assigned to ``stages`` in turn."""
        keys = self.checkpoint.versions
        found = sorted(
            (self._space.layer(key.split("/", 1)[1])._replace(stream=self._stream), key)
            for key in keys
        )
        return tuple(
            KeptLayer(layer, self._versions(key), keeper)
            for keeper, (layer, key) in zip(cycle(sorted(stages)), found, strict=False)
        )

    def version(self, layer: LayerId) -> Version | None:
        """Return a layer's newest version; None if no subnet before the cut used it."""
        state = self._state(layer)
        return state.versions[-1] if state else None

    def capture(
        self, layer: LayerId, versions: tuple[Version, ...], into: Captured
    ) -> LayerSnapshot:
        """Copy a layer's state in the checkpoint. Raise KeyError if no subnet had used it."""
        state = self._state(layer)
        if state is None:
            raise KeyError(layer)
        asked = tuple(f"version/{version}/" for version in versions[:-1])
        tensors = {
            name: raw
            for name, raw in state.tensors.items()
            if not name.startswith("version/") or name.startswith(asked)
        }
        alike: dict[str, list[str]] = defaultdict(list)
        for name, raw in tensors.items():
            alike[raw.dtype].append(name)
        kept = []
        for dtype, names in alike.items():
            listing = Listing(dtype, tuple((name, tensors[name].shape) for name in names))
            crc = 0
            for name in names:
                spans = into.keep(memoryview(tensors[name].data), listing.item_bytes)
                crc = checksum(spans, crc)
            kept.append((listing, crc))
        return LayerSnapshot(versions, tuple(kept), state.scalars, state.strides)

    def _state(self, layer: LayerId) -> _State | None:
        key = layer_key(self._space, layer._replace(stream=FIRST_STREAM))
        if key not in self.checkpoint.versions:
            return None
        return _State(
            self._versions(key),
            self._tensors.get(key, {}),
            self._scalars.get(key, {}),
            self._strides.get(key, {}),
        )

    def restore(self, layer: LayerId, stored: StoredLayer) -> None:
        """Restore a new layer to its state in the checkpoint."""
        self._fill(stored, self._state(layer))

    def restore_weights(self, layer: LayerId, stored: StoredLayer, ema: bool = False) -> None:
        """Fill a new layer with the newest parameters and buffers only.

        The layer stays at its initial version. With ``ema``, parameters are set to their moving
        averages if available.
        """
        state = self._state(layer)
        if state is not None:
            tensors = {
                name: raw
                for name, raw in state.tensors.items()
                if name.startswith(("param/", "buffer/"))
            }
            for name in stored.parameters if ema else ():
                if raw := state.tensors.get(f"optimizer/{name}/{AVERAGE}"):
                    tensors[f"param/{name}"] = raw
            versions = (INITIAL,)
            state = state._replace(versions=versions, tensors=tensors, scalars={})
        self._fill(stored, state)

    def _fill(self, stored: StoredLayer, state: _State | None) -> None:
        if state is None:
            return
        try:
            _restore(stored, state)
        except (KeyError, ValueError, RuntimeError) as error:
            raise LogError(
                f"layer {stored.label}: the checkpoint at subnet {self.first} does not fit it: "
                f"{error!r:.200}"
            ) from error

    def _versions(self, key: str) -> tuple[Version, ...]:
        newest = self.checkpoint.versions[key]
        return tuple(map(Version, self.checkpoint.history.get(key, (newest,))))


def _by_layer(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Group values with keys ``stream/label/rest`` by ``stream/label``, then ``rest``."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in values.items():
        stream, label, rest = name.split("/", 2)
        found[f"{stream}/{label}"][rest] = value
    return dict(found)


def _restore(stored: StoredLayer, state: _State) -> None:
    copies: dict[Version, Gradients] = defaultdict(dict)
    expected = {f"param/{name}" for name in stored.parameters}
    if missing := expected - state.tensors.keys():
        raise KeyError(min(missing))
    for name, raw in state.tensors.items():
        kind, _, rest = name.partition("/")
        value = aligned(raw, state.strides.get(name))
        match kind:
            case "param":
                _copy(value, stored.parameters[rest].detach())
            case "buffer":
                _set_buffer(stored, rest, value)
            case "optimizer":
                _set_optimizer_state(stored, rest, value)
            case "version":
                older, _, parameter = rest.partition("/")
                owner = stored.parameters.get(parameter)
                # Otherwise it is a buffer of a layer whose readers have their own copies.
                read = stored.module.get_buffer(parameter) if owner is None else owner.detach()
                copies[Version(int(older))][parameter] = _copy(value, torch.empty_like(read))
            case _:
                raise KeyError(name)
    drop_buffers(stored.module, [n.removeprefix("buffer/") for n in state.tensors])
    for name, scalar in state.scalars.items():
        _set_optimizer_state(stored, name.removeprefix("optimizer/"), scalar)
    for version in state.versions[:-1]:
        copies[version]  # a layer without parameters also has versions
    stored.restore(state.versions[-1], copies)


def _copy(value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if (value.dtype, value.shape) != (target.dtype, target.shape):
        raise ValueError(f"{value.dtype} of shape {tuple(value.shape)}")
    return target.copy_(value)


def _set_buffer(stored: StoredLayer, name: str, value: torch.Tensor) -> None:
    """Fill a buffer, in its own memory if possible, because other tensors may share it."""
    owner, key = slot_of(stored.module, name)
    buffer = owner._buffers.get(key)
    if buffer is None or (buffer.dtype, buffer.shape) != (value.dtype, value.shape):
        replace_buffer(stored.module, name, value)
    elif not torch.equal(tensor_bytes(buffer), tensor_bytes(value)):
        buffer.copy_(value)


def _set_optimizer_state(stored: StoredLayer, name: str, value: Any) -> None:
    parameter, _, key = name.rpartition("/")
    if stored.optimizer is None:
        raise KeyError(name)
    stored.optimizer.state[stored.parameters[parameter]][key] = value

"""One layer as a checkpoint holds it, and a checkpoint to go on from, by layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import torch

from naspipe.config.errors import LogError
from naspipe.config.ids import FIRST_STREAM, INITIAL, LayerId, StageId, StreamId, Version
from naspipe.config.space import Space
from naspipe.core.events import KeptLayer
from naspipe.runtime.checkpoints.capture_memory import Captured, checksum
from naspipe.runtime.checkpoints.layer_bytes import aligned, layer_key
from naspipe.runtime.devices.tensor_bytes import tensor_bytes
from naspipe.runtime.layers.bound_layer import Gradients
from naspipe.runtime.layers.buffers import drop_buffers, replace_buffer, slot_of
from naspipe.runtime.layers.stored_layer import StoredLayer
from naspipe.runtime.stepping.around_step import AVERAGE
from naspipe.trace.snapshots.shard_headers import Listing
from naspipe.trace.snapshots.shards import RawTensor
from naspipe.trace.snapshots.snapshot import Checkpoint


class LayerSnapshot(NamedTuple):
    """One layer's state at a cut, by names without the layer's own.

    ``tensors`` are those of one dtype each, with the CRC32 of their bytes. ``versions`` may still
    be read, oldest first; all but the last one are parameters only.
    ``strides`` are those of tensors that are not contiguous.
    """

    versions: tuple[Version, ...]
    tensors: tuple[tuple[Listing, int], ...]
    scalars: Mapping[str, Any]
    strides: Mapping[str, Sequence[int]]


class _State(NamedTuple):
    """The same as a checkpoint gives it back, tensor by tensor."""

    versions: tuple[Version, ...]
    tensors: Mapping[str, RawTensor]
    scalars: Mapping[str, Any]
    strides: Mapping[str, Sequence[int]]


class Restored:
    """A checkpoint that a stream goes on from.

    Args:
        space: of the stream.
        stream: its number in this pipeline; in the files it is the only one.
        checkpoint: at the cut.
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
        """Every layer that it holds, in chain order, kept by these stages in turn.

        Raises:
            ConfigError: when the space has no such layer.
        """
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
        """The newest one of a layer; None when nobody had used it before the cut."""
        state = self._state(layer)
        return state.versions[-1] if state else None

    def capture(
        self, layer: LayerId, versions: tuple[Version, ...], into: Captured
    ) -> LayerSnapshot:
        """Copy a layer as the checkpoint holds it, of versions but the last the parameters only.

        Raises:
            KeyError: when nobody had used it before the cut.
        """
        state = self._state(layer)
        if state is None:
            raise KeyError(layer)
        asked = tuple(f"version/{version}/" for version in versions[:-1])
        tensors = {
            name: raw
            for name, raw in state.tensors.items()
            if not name.startswith("version/") or name.startswith(asked)
        }
        return LayerSnapshot(versions, _keep(tensors, into), state.scalars, state.strides)

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
        """Bring a layer that was just made to where the checkpoint left it.

        Raises:
            LogError: when what the checkpoint holds does not fit the layer.
        """
        self._fill(stored, self._state(layer))

    def restore_weights(self, layer: LayerId, stored: StoredLayer, ema: bool = False) -> None:
        """Fill a layer that was just made with the newest parameters and buffers, nothing else.

        It stays at its initial version: nothing was written here. With ``ema`` the parameters are
        their moving averages, where there are any.

        Raises:
            LogError: when what the checkpoint holds does not fit the layer.
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
    """``stream/label/rest`` to ``stream/label`` and ``rest``."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in values.items():
        stream, label, rest = name.split("/", 2)
        found[f"{stream}/{label}"][rest] = value
    return dict(found)


def _keep(tensors: Mapping[str, RawTensor], into: Captured) -> tuple[tuple[Listing, int], ...]:
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
    return tuple(kept)


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
                like = torch.empty_like(_read(stored, parameter))
                copies[Version(int(older))][parameter] = _copy(value, like)
            case _:
                raise KeyError(name)
    drop_buffers(stored.module, [n.removeprefix("buffer/") for n in state.tensors])
    for name, scalar in state.scalars.items():
        _set_optimizer_state(stored, name.removeprefix("optimizer/"), scalar)
    for version in state.versions[:-1]:
        copies[version]  # a layer without parameters has versions, too
    stored.restore(state.versions[-1], copies)


def _read(stored: StoredLayer, name: str) -> torch.Tensor:
    """A parameter, or a buffer of a layer whose readers have their own."""
    parameter = stored.parameters.get(name)
    return parameter.detach() if parameter is not None else stored.module.get_buffer(name)


def _copy(value: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if (value.dtype, value.shape) != (target.dtype, target.shape):
        raise ValueError(f"{value.dtype} of shape {tuple(value.shape)}")
    return target.copy_(value)


def _set_buffer(stored: StoredLayer, name: str, value: torch.Tensor) -> None:
    """Fill a buffer, in its own memory where that fits: others may share it."""
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

"""Checkpoints at byte level: safetensors shards and the manifest that makes them one whole.

The safetensors layout (length of a JSON header, the header, then the bytes of all tensors)
is read and written here without torch, so that every dtype keeps its exact bytes. A directory
without its manifest is no checkpoint: the manifest is written last.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from naspipe.core.errors import ConfigError, LogError
from naspipe.trace.files import atomic_file, write_json

ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""Bytes of one element of each dtype, by its safetensors name."""

MANIFEST_NAME = "manifest.json"
_HEADER_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000
_CHECKPOINT_FORMAT = 1


class RawTensor(NamedTuple):
    """A tensor as bytes: ``dtype`` by its safetensors name (``F32``, ``BF16``, ``I64``),
    ``data`` contiguous and little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Checkpoint(NamedTuple):
    """Tensors of all shards by name, the version of each layer, and state that is no tensor.

    ``history`` names, by layer, the versions that may still be read, oldest first; ``strides``
    those of tensors that are not contiguous; ``losses`` the bytes and the CRC32 of the lines of
    ``losses.jsonl`` that belong to the checkpoint. The final checkpoint has none of these.
    """

    subnets: int
    tensors: dict[str, RawTensor]
    versions: dict[str, int]
    scalars: dict[str, Any]
    history: Mapping[str, Sequence[int]] = MappingProxyType({})
    strides: Mapping[str, Sequence[int]] = MappingProxyType({})
    losses: tuple[int, int] = (0, 0)


def write_checkpoint(
    directory: Path, shard_name: str, tensors: Mapping[str, RawTensor]
) -> dict[str, Any]:
    """Write one shard, whole or not at all; returns its entry for the manifest's ``shards``.

    Tensors are named ``{stream}/{label}/param/{name}``, ``…/buffer/{name}`` and
    ``…/optimizer/{param name}/{state key}``; the parameters of an older version that may still
    be read, ``…/version/{version}/{name}``.

    Raises:
        LogError: when a tensor's bytes do not fit its dtype and shape.
    """
    directory.mkdir(parents=True, exist_ok=True)
    names = sorted(tensors, key=lambda name: (-_item_bytes(name, tensors[name].dtype), name))
    header: dict[str, Any] = {}
    offset = 0
    for name in names:
        dtype, shape, data = tensors[name]
        _check_length(name, dtype, shape, len(data))
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path = directory / shard_name
    digest, length = hashlib.blake2b(digest_size=32), 0
    with atomic_file(path) as file:
        for part in (_HEADER_LENGTH.pack(len(text)), text, *(tensors[n].data for n in names)):
            file.write(part)
            digest.update(part)
            length += len(part)
    return {"file": shard_name, "bytes": length, "blake2b": digest.hexdigest()}


def write_checkpoint_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Make the shards of a directory a checkpoint.

    Keys: those of :class:`Checkpoint`, with ``shards`` in place of the tensors; all but
    ``subnets`` and ``shards`` may be left out.

    A float in ``scalars`` keeps its exact bits, a NaN's payload too.
    """
    scalars = {name: _encode_scalar(value) for name, value in manifest.get("scalars", {}).items()}
    content = {"format": _CHECKPOINT_FORMAT, "versions": {}, **manifest, "scalars": scalars}
    write_json(directory / MANIFEST_NAME, {**content, "blake2b": _digest_of(content)})


def _digest_of(manifest: Mapping[str, Any]) -> str:
    """Of what a manifest says, however its JSON is written."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read a checkpoint and check every size and digest.

    Raises:
        ConfigError: when the directory holds no finished checkpoint.
        LogError: when a file of it is damaged.
    """
    manifest = _read_manifest(directory)
    tensors: dict[str, RawTensor] = {}
    try:
        shards = [(str(s["file"]), int(s["bytes"]), str(s["blake2b"])) for s in manifest["shards"]]
        scalars = {name: _decode_scalar(value) for name, value in manifest["scalars"].items()}
        versions = {name: int(version) for name, version in manifest["versions"].items()}
        subnets = int(manifest["subnets"])
        history = {k: [int(v) for v in each] for k, each in manifest.get("history", {}).items()}
        strides = {k: [int(s) for s in each] for k, each in manifest.get("strides", {}).items()}
        length_of_losses, crc_of_losses = map(int, manifest.get("losses", (0, 0)))
    except (KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise LogError(f"{directory / MANIFEST_NAME} is damaged: {error!r}") from error
    for name, length, digest in shards:
        if Path(name).name != name:
            raise LogError(f"{directory / MANIFEST_NAME}: expected a file name, found {name!r}")
        shard = _read_shard(directory / name, length, digest)
        if twice := tensors.keys() & shard.keys():
            raise LogError(f"{directory}: {min(twice)} is in two shards; {name} is the second")
        tensors |= shard
    losses = (length_of_losses, crc_of_losses)
    return Checkpoint(subnets, tensors, versions, scalars, history, strides, losses)


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST_NAME
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{directory} is not a finished checkpoint: expected {path}, found {error.strerror}"
        ) from error
    except ValueError as error:
        raise LogError(f"{path} is damaged: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _CHECKPOINT_FORMAT:
        raise ConfigError(f"{path}: expected a checkpoint of format {_CHECKPOINT_FORMAT}")
    expected = manifest.pop("blake2b", None)
    if expected != (found := _digest_of(manifest)):
        raise LogError(f"{path} is damaged: expected digest {expected!s:.16}…, found {found[:16]}…")
    return manifest


def _read_shard(path: Path, length: int, expected_digest: str) -> dict[str, RawTensor]:
    try:
        found = path.stat().st_size
        if found != length:
            raise LogError(f"{path}: expected {length} bytes, found {found}")
        with path.open("rb") as file:
            digest = hashlib.blake2b(digest_size=32)
            tensors = _read_tensors(file, length, digest, path)
    except OSError as error:
        raise LogError(f"{path}: expected a shard, found {error.strerror}") from error
    if digest.hexdigest() != expected_digest:
        raise LogError(
            f"{path} is damaged: expected digest {expected_digest[:16]}…, "
            f"found {digest.hexdigest()[:16]}…"
        )
    return tensors


def _read_tensors(
    file: BinaryIO, length: int, digest: hashlib.blake2b, path: Path
) -> dict[str, RawTensor]:
    """Tensors in file order; offsets must follow one another without gaps to the end."""

    try:
        prefix = file.read(_HEADER_LENGTH.size)
        (header_bytes,) = _HEADER_LENGTH.unpack(prefix)
        if header_bytes > min(_MAX_HEADER_BYTES, length):
            raise ValueError(f"a header of {header_bytes} bytes")
        text = file.read(header_bytes)
        digest.update(prefix + text)
        header: dict[str, Any] = json.loads(text)
        header.pop("__metadata__", None)
        entries = sorted(header.items(), key=lambda item: (item[1]["data_offsets"], item[0]))
        tensors, offset = {}, 0
        for name, entry in entries:
            start, end = entry["data_offsets"]
            if start != offset or end < start or end > length:
                raise ValueError(f"{name} at {start} to {end}, expected a start at {offset}")
            _check_length(name, entry["dtype"], entry["shape"], end - start)
            data = file.read(end - start)
            digest.update(data)
            tensors[name] = RawTensor(entry["dtype"], tuple(entry["shape"]), data)
            offset = end
        if _HEADER_LENGTH.size + header_bytes + offset != length:
            raise ValueError(f"tensors end at {offset}")
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, LogError) as error:
        raise LogError(f"{path}: expected a safetensors file, found {error}") from error
    return tensors


def _item_bytes(name: str, dtype: str) -> int:
    if dtype not in ITEM_BYTES:
        raise LogError(f"{name}: unknown dtype {dtype!r}, expected one of {', '.join(ITEM_BYTES)}")
    return ITEM_BYTES[dtype]


def _check_length(name: str, dtype: str, shape: Any, length: int) -> None:
    expected = _item_bytes(name, dtype) * math.prod(shape)
    if length != expected or any(size < 0 for size in shape):
        raise LogError(
            f"{name}: {dtype} of shape {tuple(shape)} has {expected} bytes, found {length}"
        )


def _encode_scalar(value: Any) -> Any:
    if isinstance(value, float):
        return {"float": struct.pack(">d", value).hex()}
    return value


def _decode_scalar(value: Any) -> Any:
    if isinstance(value, dict):
        return struct.unpack(">d", bytes.fromhex(value["float"]))[0]
    return value

"""The checkpoints of one run, each written to its own directory, which is renamed once complete.

Only the newest few are kept. A checkpoint consists of a manifest and the shards that it lists.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from naspipe.config.errors import ConfigError, LogError
from naspipe.config.text import parse_json
from naspipe.store.files import sync_directory, write_json
from naspipe.store.shards import RawTensor, read_shard, shard_names

MANIFEST_NAME = "manifest.json"
_CHECKPOINT_FORMAT = 2


class Checkpoint(NamedTuple):
    """Tensors of all shards by name, the version of each layer, and state that is not a tensor.

    ``history`` maps each layer to the versions that may still be read, oldest first; ``strides``
    has the strides of tensors that are not contiguous; ``losses`` is the length in bytes and the
    CRC32 of the lines of ``losses.jsonl`` that belong to the checkpoint. The final checkpoint has
    none of these.
    """

    subnets: int
    tensors: dict[str, RawTensor]
    versions: dict[str, int]
    scalars: dict[str, Any]
    history: Mapping[str, Sequence[int]] = MappingProxyType({})
    strides: Mapping[str, Sequence[int]] = MappingProxyType({})
    losses: tuple[int, int] = (0, 0)


def write_checkpoint_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest that turns the shards of a directory into a checkpoint.

    The keys are those of :class:`Checkpoint`, with ``shards`` instead of the tensors. Only
    ``subnets`` and ``shards`` are required. Floats in ``scalars`` keep their exact bits, including
    the payload of a NaN.
    """
    scalars = {
        name: {"float": struct.pack(">d", value).hex()} if isinstance(value, float) else value
        for name, value in manifest.get("scalars", {}).items()
    }
    content = {"format": _CHECKPOINT_FORMAT, "versions": {}, **manifest, "scalars": scalars}
    write_json(directory / MANIFEST_NAME, {**content, "blake2b": _digest_of(content)})


def _digest_of(manifest: Mapping[str, Any]) -> str:
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read a checkpoint and check every size and digest.

    Raises:
        ConfigError: if the directory holds no finished checkpoint.
        LogError: if one of its files is damaged.
    """
    manifest = _read_manifest(directory)
    tensors: dict[str, RawTensor] = {}
    try:
        for entry in manifest["shards"]:
            shard = read_shard(directory, entry)
            if twice := tensors.keys() & shard.keys():
                raise LogError(f"{directory}: {min(twice)} is in two shards")
            tensors |= shard
        scalars = {
            name: struct.unpack(">d", bytes.fromhex(value["float"]))[0]
            if isinstance(value, dict)
            else value
            for name, value in manifest["scalars"].items()
        }
        versions = {name: int(version) for name, version in manifest["versions"].items()}
        subnets = int(manifest["subnets"])
        history = {k: [int(v) for v in each] for k, each in manifest.get("history", {}).items()}
        strides = {k: [int(s) for s in each] for k, each in manifest.get("strides", {}).items()}
        length_of_losses, crc_of_losses = map(int, manifest.get("losses", (0, 0)))
    except (KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise LogError(f"{directory / MANIFEST_NAME} is damaged: {error!r}") from error
    losses = (length_of_losses, crc_of_losses)
    return Checkpoint(subnets, tensors, versions, scalars, history, strides, losses)


def tensor_names(directory: Path) -> frozenset[str]:
    """Return the tensor names of a checkpoint; errors as in :func:`read_checkpoint`."""
    manifest = _read_manifest(directory)
    try:
        return frozenset(
            name for entry in manifest["shards"] for name in shard_names(directory, entry)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LogError(f"{directory / MANIFEST_NAME} is damaged: {error!r}") from error


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST_NAME
    try:
        manifest = parse_json(path.read_bytes())
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


FINAL = "final"
_CUT = re.compile(r"subnet-([0-9]{9,18})")


def cut_name(cut: int) -> str:
    """Return the name of the checkpoint that holds every WRITE of the subnets below ``cut``."""
    return f"subnet-{cut:09d}"


class Latest(NamedTuple):
    """The newest intact checkpoint, and a line about each newer one that is damaged."""

    checkpoint: Checkpoint | None
    passed_over: tuple[str, ...] = ()


class CheckpointFolder:
    """A run's ``checkpoints`` directory; creating the object touches no file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def working(self, name: str, generation: int) -> Path:
        """Return the directory in which a checkpoint's shards are written until it is complete.

        The attempt is part of the name, so that a process of an earlier attempt that is still
        writing cannot change a later checkpoint.
        """
        return self.path / f".{name}.gen-{generation}"

    def publish(self, name: str, generation: int, manifest: Mapping[str, Any]) -> None:
        """Turn the shards in :meth:`working` into a checkpoint, replacing one of the same name."""
        working, target = self.working(name, generation), self.path / name
        write_checkpoint_manifest(working, manifest)
        if target.exists():
            _remove(target)
        working.rename(target)
        sync_directory(self.path)

    def prune(self, keep: int, spared: Collection[int] = ()) -> None:
        """Remove all checkpoints of cuts except the newest ``keep`` and ``spared`` cuts."""
        for cut, path in self._cuts()[keep:]:
            if cut not in spared:
                _remove(path)

    def remove_beyond(self, cut: int) -> None:
        """Remove the checkpoints of later cuts, because the run continues from this one."""
        for later, path in self._cuts():
            if later > cut:
                _remove(path)

    def sweep(self) -> None:
        """Remove unfinished checkpoints of earlier attempts."""
        for path in self.path.glob(".*.gen-*"):
            shutil.rmtree(path, ignore_errors=True)

    def latest(self, up_to: int | None = None) -> Latest:
        """Read the newest intact checkpoint with a cut of at most ``up_to``; skip damaged ones.

        Raises:
            LogError: if there are checkpoints, but all are damaged.
        """
        passed_over: list[str] = []
        for cut, path in self._cuts():
            if up_to is not None and cut > up_to:
                continue
            try:
                checkpoint = read_checkpoint(path)
                if checkpoint.subnets != cut:
                    raise LogError(f"{path} holds {checkpoint.subnets} subnets, expected {cut}")
            except (LogError, ConfigError) as error:
                passed_over.append(str(error))
                continue
            return Latest(checkpoint, tuple(passed_over))
        if passed_over:
            raise LogError(
                f"{self.path}: expected a checkpoint that is whole, found none "
                f"({passed_over[0]}); restore one from a copy, or train anew"
            )
        return Latest(None)

    @property
    def cuts(self) -> list[int]:
        """The cuts of all checkpoints, damaged or not, newest first."""
        return [cut for cut, _ in self._cuts()]

    def _cuts(self) -> list[tuple[int, Path]]:
        if not self.path.is_dir():
            return []
        found = ((_CUT.fullmatch(path.name), path) for path in self.path.iterdir())
        return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)


def _remove(path: Path) -> None:
    """Remove a checkpoint, manifest first, so that a partial one is never considered complete."""
    (path / MANIFEST_NAME).unlink(missing_ok=True)
    shutil.rmtree(path)

"""Labels on disk: a record with the key of the labels, followed by one record per batch.

    magic, version | length, number, CRC32 | payload | length, number, CRC32 | payload | ...

The record with number -1 contains the key, in msgpack. The payload of a batch is the length of the
description of its label (dtype, shape, strides, alignment), the description in msgpack, and the
bytes of the label. The CRC32 covers the length, the number and the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgpack
import torch
from isal.isal_zlib import crc32

from naspipe.config.definition import Definition
from naspipe.config.errors import ConfigError, TransportError
from naspipe.config.recipe import Recipe
from naspipe.distill.label_network import LabelNetwork, check_draws
from naspipe.distill.teachers import Teacher
from naspipe.jobs.workload import Batches, Workload
from naspipe.machine.determinism import deterministic_torch
from naspipe.store.files import write_whole, writing
from naspipe.wire.tensor_codec import MAX_BYTES, decode, encode

_MAGIC, _VERSION = b"naspipeL", 1
_HEADER = struct.Struct("<8sI")
_RECORD = struct.Struct("<QqI")
_COVERED = struct.Struct("<Qq")
_LENGTH = struct.Struct("<I")
_KEY = -1
_MAX_DESCRIPTION = 1 << 12
_UNREADABLE = (ValueError, TypeError, struct.error, msgpack.UnpackException)


def label_key(definition: Definition) -> dict[str, Any]:
    """Return what labels depend on apart from their batch, from a student's definition."""
    key = {
        "teacher": definition.teacher,
        "seed": definition.seed,
        "data": dict(definition.data),
        "precision": definition.recipe.precision,
        "threads": definition.recipe.threads,
    }
    plain: dict[str, Any] = msgpack.unpackb(msgpack.packb(key))  # as it is read from messages
    return plain


class LabelWriter:
    """Writes a file of labels; a context manager, on whose exit the file appears as a whole.

    Raises:
        ConfigError: if the file exists.
        StorageError: from every method, if the file cannot be written.
    """

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        if path.exists():
            raise ConfigError(f"{path}: expected a file that does not exist yet, found one")
        self._path, self._part = path, path.with_name(f"{path.name}.part")
        with writing(path):
            self._file = self._part.open("wb", buffering=0)
            write_whole(self._file, _HEADER.pack(_MAGIC, _VERSION))
        self._write(_KEY, msgpack.packb(dict(key)))

    def write(self, number: int, label: torch.Tensor) -> None:
        entry, raw = encode(label.detach())
        described = msgpack.packb(entry)
        self._write(number, _LENGTH.pack(len(described)) + described + bytes(raw))

    def _write(self, number: int, payload: bytes) -> None:
        covered = _COVERED.pack(len(payload), number)
        record = _RECORD.pack(len(payload), number, crc32(payload, crc32(covered)))
        with writing(self._path, len(record) + len(payload)):
            write_whole(self._file, record)
            write_whole(self._file, payload)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *others: object) -> None:
        self._file.close()
        if error is None:
            self._part.replace(self._path)
        else:
            self._part.unlink(missing_ok=True)


class LabelFile:
    """Reads the labels of a file by batch.

    Raises:
        ConfigError: if the file does not exist, is not a file of labels, or is truncated or
            damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self.key: dict[str, Any] = {}
        self._places: dict[int, tuple[int, int]] = {}
        """Start and length of the payload of each batch."""
        try:
            with self._path.open("rb") as file:
                self._read(file)
        except OSError as error:
            raise ConfigError(
                f"labels: expected a file of labels at {self._path}, found {error.strerror}"
            ) from error

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(self._places)

    def check(self, key: Mapping[str, Any], batches: int) -> None:
        """Check that the file contains the labels of a run.

        Args:
            key: the key of the run's labels, see :func:`label_key`.
            batches: number of batches, starting from 0.

        Raises:
            ConfigError: naming what differs, or the first batch that is missing.
        """
        for name, value in key.items():
            if self.key.get(name) != value:
                raise ConfigError(
                    f"labels: expected those of {name} {value!s:.80} in {self._path}, found "
                    f"{self.key.get(name)!s:.80}; write them with naspipe teach --to"
                )
        for number in range(batches):
            if number not in self._places:
                raise ConfigError(
                    f"labels: expected those of batches 0 to {batches - 1} in {self._path}, found "
                    f"none of batch {number}; write more with naspipe teach --to"
                )

    def label(self, number: int) -> torch.Tensor:
        """Read the label of a batch, which must be one of ``numbers``.

        Raises:
            ConfigError: if the file is damaged.
        """
        start, length = self._places[number]
        with self._path.open("rb") as file:
            file.seek(start - _RECORD.size)
            payload = self._payload(file, number, length)
        try:
            (described,) = _LENGTH.unpack_from(payload)
            if described > min(_MAX_DESCRIPTION, len(payload)):
                raise ValueError(f"a description of {described} bytes")
            entry = msgpack.unpackb(payload[_LENGTH.size : _LENGTH.size + described])
            found = decode(entry, payload[_LENGTH.size + described :])
        except (*_UNREADABLE, TransportError) as error:
            raise self._damaged(start, f"a label, found {error!s:.200}") from error
        if found is None:
            raise self._damaged(start, "a label, found none")
        return found

    def _read(self, file: BinaryIO) -> None:
        """Find every record, and check its CRC32."""
        header = file.read(_HEADER.size)
        if header != _HEADER.pack(_MAGIC, _VERSION):
            raise ConfigError(
                f"labels: expected a file of labels at {self._path}, as naspipe teach --to writes, "
                f"found one that begins with {header[:8]!r}"
            )
        for start, number, payload in self._records(file):
            if number == _KEY:
                try:
                    self.key = dict(msgpack.unpackb(payload))
                except _UNREADABLE as error:
                    raise self._damaged(start, "whose labels they are") from error
            else:
                self._places[number] = start, len(payload)

    def _records(self, file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
        """Yield the start of each payload, its number, and the payload."""
        end = self._path.stat().st_size
        while (start := file.tell() + _RECORD.size) <= end:
            length, number, _ = _RECORD.unpack(file.read(_RECORD.size))
            if start + length > end or length > MAX_BYTES + _MAX_DESCRIPTION:
                raise self._damaged(start, f"a record of {length} bytes, found {end - start}")
            file.seek(start - _RECORD.size)
            yield start, number, self._payload(file, number, length)
        if file.tell() != end:
            raise self._damaged(file.tell(), f"a record, found {end - file.tell()} bytes")

    def _payload(self, file: BinaryIO, number: int, length: int) -> bytes:
        start = file.tell() + _RECORD.size
        _, _, checksum = _RECORD.unpack(file.read(_RECORD.size))
        payload = file.read(length)
        if crc32(payload, crc32(_COVERED.pack(length, number))) != checksum:
            raise self._damaged(start, "a record with a matching CRC32, found a damaged one")
        return payload

    def _damaged(self, offset: int, expected: str) -> ConfigError:
        return ConfigError(
            f"labels: {self._path}, offset {offset}: expected {expected}; write it anew with "
            f"naspipe teach --to"
        )


def write_labels(
    teacher: Teacher,
    data: Batches,
    path: str | Path,
    *,
    batches: int,
    seed: int = 0,
    recipe: Recipe | None = None,
    device: str = "cpu",
    on_label: Callable[[int], None] | None = None,
) -> None:
    """Write a teacher's outputs for the first batches, for runs with ``labels=file:PATH``.

    The labels are bitwise equal to those of a teacher that is a stream of such a run.

    Args:
        teacher: a teacher in mode ``eval``.
        data: the student's data.
        path: a file that does not exist yet.
        batches: number of batches; a run needs one per pass.
        seed: seed of the runs.
        recipe: recipe of the runs; its precision and threads affect the labels.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        on_label: called with the number of each label that has been written.

    Raises:
        ConfigError: for a teacher whose labels do not depend on the batch alone, because it is in
            mode ``train`` or draws random numbers; or for a file that exists.
        StorageError: if the file cannot be written.
    """
    if teacher.mode != "eval":
        raise ConfigError(f"labels: expected a teacher in mode eval, found {teacher.mode}")
    if batches < 1:
        raise ConfigError(f"labels: expected those of 1 batch or more, found {batches}")
    workload = label_workload(teacher, data, seed, recipe or Recipe())
    with (
        deterministic_torch(workload.recipe.threads),
        LabelWriter(Path(path), label_key(workload.definition)) as file,
    ):
        network = LabelNetwork.of(workload, device)
        for number in range(batches):
            file.write(number, check_draws(network, number, network.fields(number)))
            if on_label is not None:
                on_label(number)


def label_workload(teacher: Teacher, data: Batches, seed: int, recipe: Recipe) -> Workload:
    """Combine a teacher's network with a student's data, to compute labels.

    Like the student's definition, its definition contains the digest of the teacher.
    """
    made = Workload.of(
        teacher.space, data, torch.nn.CrossEntropyLoss(), recipe=recipe, seed=seed, steps=1
    )
    definition = replace(made.definition, teacher=teacher.digest)
    return replace(made, definition=definition, is_trained=False)

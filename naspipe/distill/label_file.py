"""Labels on disk: one record per batch, each with a CRC32, behind a record that says whose.

    magic, version | length, number, CRC32 | payload | length, number, CRC32 | payload | ...

The payload of number -1 is the key, as msgpack. That of a batch is the description of its label
(dtype, shape, strides, alignment), as msgpack with its length before it, and then the bytes. The
CRC32 covers length and number, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgpack
import torch
from isal.isal_zlib import crc32

from naspipe.config.definition import Definition, Recipe
from naspipe.config.errors import ConfigError, TransportError
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
    """What labels are a function of, beside the number of their batch.

    Args:
        definition: of the student.
    """
    key = {
        "teacher": definition.teacher,
        "seed": definition.seed,
        "data": dict(definition.data),
        "precision": definition.recipe.precision,
        "threads": definition.recipe.threads,
    }
    plain: dict[str, Any] = msgpack.unpackb(msgpack.packb(key))  # as others read it
    return plain


class LabelWriter:
    """Writes a file of labels; a context manager. The file is whole when it is left.

    Args:
        path: must not exist.
        key: see :func:`label_key`.

    Raises:
        ConfigError: when the file exists.
        StorageError: from every call, when it cannot be written.
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
        """Append the label of a batch."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()
        if error is None:
            self._part.replace(self._path)
        else:
            self._part.unlink(missing_ok=True)


class LabelFile:
    """Reads a file of labels, by batch.

    Args:
        path: the file.

    Raises:
        ConfigError: when there is none, or one that is no file of labels, is cut or damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self.key: dict[str, Any] = {}
        self._places: dict[int, tuple[int, int]] = {}
        """Of each batch, where its payload begins, and its length."""
        try:
            with self._path.open("rb") as file:
                self._read(file)
        except OSError as error:
            raise ConfigError(
                f"labels: expected a file of labels at {self._path}, found {error.strerror}"
            ) from error

    @property
    def numbers(self) -> frozenset[int]:
        """The batches that it has labels of."""
        return frozenset(self._places)

    def check(self, key: Mapping[str, Any], batches: int) -> None:
        """It must hold what a run asks for.

        Args:
            key: of the run, see :func:`label_key`.
            batches: it needs those from 0 on.

        Raises:
            ConfigError: naming what is another one's, or the first batch that is missing.
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
        """The label of a batch.

        Raises:
            ConfigError: when it is damaged, or not there.
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
        """Find every record, and look at its CRC32."""
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
        """Where each payload begins, its number, and itself."""
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
    """What a teacher says of the first batches, for runs with ``labels=file:PATH``.

    The bits are those of a teacher that is a stream of such a run.

    Args:
        teacher: in mode ``eval``.
        data: the student's.
        path: a file that does not exist yet.
        batches: how many; a run needs one per pass.
        seed: of the runs.
        recipe: of the runs: precision and threads.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        on_label: told of each number when its label is written.

    Raises:
        ConfigError: for a teacher whose labels are no function of the batch: one in mode
            ``train``, or one that draws; or for a file that exists.
        StorageError: when the file cannot be written.
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
    """A teacher's network with a student's data, to compute labels by.

    Its definition names the teacher as the student's does.
    """
    made = Workload.of(
        teacher.space, data, torch.nn.CrossEntropyLoss(), recipe=recipe, seed=seed, steps=1
    )
    definition = replace(made.definition, teacher=teacher.digest)
    return replace(made, definition=definition, is_trained=False)

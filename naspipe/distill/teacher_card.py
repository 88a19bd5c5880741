"""The card with which a teacher introduces itself, and the keys of teachers.

A card grants nothing: everything in it is checked before labels are requested from the teacher.
"""

from __future__ import annotations

import os
import platform
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import torch
import zmq
from zmq.utils import z85

from naspipe.config.errors import ConfigError, TransportError, reason

MAX_CARD_BYTES = 1 << 12


class TeacherCard(NamedTuple):
    """Where a teacher listens, and what it claims to be."""

    name: str
    """Unique among the teachers at one time."""
    address: str
    """Address of its ZeroMQ socket."""
    public_key: str
    """CURVE key in z85; empty for a teacher in the run's private directory."""
    digest: str
    """Digest of its weights, as in ``definition.teacher``."""
    numeric_class: str
    """See :func:`numeric_class`."""


def numeric_class(device: str, threads: int) -> str:
    """Return what must be equal for two processes to compute the same bits, as far as is known."""
    kind = torch.device(device).type
    if kind == "cuda":
        where = torch.cuda.get_device_name(torch.device(device))
    else:
        where = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {threads}"
    return f"torch {torch.__version__}, {kind}, {where}"


def pack_card(card: TeacherCard) -> bytes:
    data: bytes = msgpack.packb(list(card))
    return data


def read_card(data: bytes) -> TeacherCard:
    """Decode a card.

    Raises:
        TransportError: if the bytes are not a card.
    """
    try:
        if len(data) > MAX_CARD_BYTES:
            raise ValueError(f"{len(data)} bytes")
        values: Any = msgpack.unpackb(data)
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            raise ValueError("expected texts")
        return TeacherCard(*values)
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise TransportError(f"a teacher's card cannot be read: {error!s:.200}") from error


_KEY_CHARACTERS = 40


def read_keys(path: Path) -> frozenset[str]:
    """Read public keys, one per line, ignoring text after a key and lines that start with ``# ``.

    Raises:
        ConfigError: naming a line that is not a key, or a file that cannot be read.
    """
    found = set()
    try:
        lines = path.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"teacher_keys: expected a file at {path}, found {reason(error)}"
        ) from None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.startswith("# "):
            continue
        if not _is_key(words[0]):
            raise ConfigError(
                f"teacher_keys: {path}, line {number}: expected a public key of {_KEY_CHARACTERS} "
                f"characters, found {words[0]!r:.60}"
            )
        found.add(words[0])
    return frozenset(found)


def own_pair(path: Path) -> tuple[str, bytes]:
    """Read a teacher's public and secret key; if the file does not exist, create it (mode 0600).

    Raises:
        ConfigError: for a file with other content, or one that other users may read.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            public, secret = zmq.curve_keypair()
            beside = path.with_name(f"{path.name}.{os.getpid()}")
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(public + b" " + secret + b"\n")
                with suppress(FileExistsError):  # of several processes, the first one wins
                    os.link(beside, path)
            finally:
                beside.unlink()
    except OSError as error:
        raise ConfigError(f"{path}: expected a place for a key, found {reason(error)}") from None
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"{path}: expected a file that only you may read; chmod 600 {path}")
    words = path.read_bytes().split()
    if len(words) != 2 or not all(_is_key(word.decode("latin1")) for word in words):
        raise ConfigError(f"{path}: expected a public and a secret key, found something else")
    return words[0].decode("ascii"), words[1]


def _is_key(text: str) -> bool:
    if len(text) != _KEY_CHARACTERS:
        return False
    try:
        return len(z85.decode(text.encode("ascii"))) == 32
    except (ValueError, KeyError, UnicodeEncodeError, struct.error):
        return False

"""What a teacher says of itself to whoever looks for one; it introduces, and admits to nothing."""

from __future__ import annotations

import platform
from typing import Any, NamedTuple

import msgpack
import torch

from naspipe.config.errors import TransportError

MAX_CARD_BYTES = 1 << 12


class TeacherCard(NamedTuple):
    """Where a teacher listens, and what it says that it is. All of it is looked at again."""

    name: str
    """No other one has it at the same time."""
    address: str
    """Of its ZeroMQ socket."""
    public_key: str
    """CURVE key in z85; empty for one in the run's private directory."""
    digest: str
    """Of its weights, as in ``definition.teacher``."""
    numeric_class: str
    """See :func:`numeric_class`."""


def numeric_class(device: str, threads: int) -> str:
    """What has to be alike for two processes to leave the same bits, as far as it can be named.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        threads: of the compute.
    """
    kind = torch.device(device).type
    if kind == "cuda":
        where = torch.cuda.get_device_name(torch.device(device))
    else:
        where = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {threads}"
    return f"torch {torch.__version__}, {kind}, {where}"


def pack_card(card: TeacherCard) -> bytes:
    """A card as bytes."""
    data: bytes = msgpack.packb(list(card))
    return data


def read_card(data: bytes) -> TeacherCard:
    """A card from bytes.

    Raises:
        TransportError: when they are none.
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

"""The access log's schema: one access as a msgpack array of 13 plain values."""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from naspipe.core.access import Access, AccessKind
from naspipe.core.errors import LogError
from naspipe.core.ids import LayerId, PassId, SequenceId, StageId, StreamId, Version

MAGIC = b"NASPIPEA"
SCHEMA_VERSION = 1

_KINDS = {kind.value: kind for kind in AccessKind}
_INTEGERS = 11
_pack = msgpack.Packer().pack


class Recorded(NamedTuple):
    """An access and the run generation (0, then one more for every resume) that made it."""

    generation: int
    access: Access


def encode_access(access: Access, generation: int) -> bytes:
    """One record's payload."""
    (stream, block, candidate), sequence_id, pass_id, kind, version, stage, *rest = access
    start_ns, end_ns, is_hit, digest = rest
    payload: bytes = _pack(
        (
            stream,
            sequence_id,
            pass_id,
            block,
            candidate,
            version,
            stage,
            generation,
            start_ns,
            end_ns,
            is_hit,
            kind._value_,
            digest,
        )
    )
    return payload


def decode_access(payload: bytes) -> Recorded:
    """Read what :func:`encode_access` made.

    Raises:
        LogError: when the payload is not an access of this schema.
    """
    try:
        values = msgpack.unpackb(payload)
        (stream, seq, pass_id, block, candidate, version, stage, generation, start, end) = values[
            :10
        ]
        is_hit, kind, digest = values[10:]
        if not all(map(int.__instancecheck__, values[:_INTEGERS])):
            raise TypeError
        if not isinstance(digest, str):
            raise TypeError
        access = Access(
            LayerId(StreamId(stream), block, candidate),
            SequenceId(seq),
            PassId(pass_id),
            _KINDS[kind],
            Version(version),
            StageId(stage),
            start,
            end,
            is_hit,
            digest,
        )
    except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
        raise LogError(f"expected an access record, found {payload!r:.200}") from error
    return Recorded(generation, access)

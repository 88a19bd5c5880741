"""The access log's schema: one access as a msgpack array of 12 plain values."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack

from naspipe.core.access import Access, AccessKind
from naspipe.core.errors import LogError
from naspipe.core.ids import LayerId, SequenceId, StageId, StreamId, Version

MAGIC = b"NASPIPEA"
SCHEMA_VERSION = 3
READABLE_VERSIONS = (2, SCHEMA_VERSION)
"""Records of version 2 have one more number behind the sequence ID: that of a pass, always 0."""

FIELDS = (
    "stream, sequence ID, kind, block, candidate, version, stage, generation, start_ns, "
    "end_ns, stalled_ns, digest"
)
"""The values of a record, in order; all whole numbers but the kind's letter and the digest."""

_KINDS = {kind.value: kind for kind in AccessKind}
_pack = msgpack.Packer().pack


class Recorded(NamedTuple):
    """An access and the run generation (0, then one more for every resume) that made it."""

    generation: int
    access: Access


def encode_access(access: Access, generation: int) -> bytes:
    """One record's payload."""
    layer, sequence_id, kind, version, stage, start_ns, end_ns, stalled_ns, digest = access
    stream, block, candidate = layer
    place = (stream, sequence_id, kind._value_, block, candidate)
    payload: bytes = _pack(
        (*place, version, stage, generation, start_ns, end_ns, stalled_ns, digest)
    )
    return payload


def decode_access(payload: bytes, version: int = SCHEMA_VERSION) -> Recorded:
    """Read what :func:`encode_access` made, of any of the ``READABLE_VERSIONS``.

    Raises:
        LogError: when the payload is not an access of this schema.
    """
    try:
        values = msgpack.unpackb(payload)
        return _decode(values if version == SCHEMA_VERSION else _without_pass(values))
    except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
        raise LogError(f"expected an access ({FIELDS}), found {payload!r:.200}") from error


def _without_pass(values: Any) -> list[Any]:
    """A record of version 2 as one of version 3."""
    stream, sequence_id, pass_number, *rest = values
    if type(pass_number) is not int or pass_number:
        raise ValueError
    return [stream, sequence_id, *rest]


def _decode(values: Any) -> Recorded:
    (stream, sequence_id, letter, block, candidate), rest = values[:5], values[5:]
    version, stage, generation, start_ns, end_ns, stalled_ns, digest = rest
    for number in (stream, sequence_id, block, candidate, *rest[:6]):
        if type(number) is not int:
            raise TypeError
    if type(digest) is not str:
        raise TypeError
    access = Access(
        LayerId(StreamId(stream), block, candidate),
        SequenceId(sequence_id),
        _KINDS[letter],
        Version(version),
        StageId(stage),
        start_ns,
        end_ns,
        stalled_ns,
        digest,
    )
    return Recorded(generation, access)

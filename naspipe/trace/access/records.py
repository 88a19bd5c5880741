"""The access log's schemas; before segments, an access was a msgpack array of 12 values."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack

from naspipe.core.access import Access, AccessKind
from naspipe.core.errors import LogError
from naspipe.core.ids import LayerId, SequenceId, StageId, StreamId, Version

MAGIC = b"NASPIPEA"
SCHEMA_VERSION = 4
"""Records are segments: :mod:`naspipe.trace.access.segments`."""
ROWS, ROWS_WITH_PASSES = 3, 2
"""A record for each access. Version 2 has one more number behind the sequence ID: a pass, 0."""
READABLE_VERSIONS = (ROWS_WITH_PASSES, ROWS, SCHEMA_VERSION)

FIELDS = (
    "stream, sequence ID, kind, block, candidate, version, stage, generation, start_ns, "
    "end_ns, stalled_ns, digest"
)
"""The values of a record, in order; all whole numbers but the kind's letter and the digest."""

_LIMIT, _SMALL_LIMIT = 1 << 63, 1 << 31
_KINDS = {kind.value: kind for kind in AccessKind}


class Recorded(NamedTuple):
    """An access and the run generation (0, then one more for every resume) that made it."""

    generation: int
    access: Access


def decode_access(payload: bytes, version: int = ROWS) -> Recorded:
    """Read one access of version 2 or 3.

    Raises:
        LogError: when the payload is not an access of this schema.
    """
    try:
        values = msgpack.unpackb(payload)
        return _decode(values if version == ROWS else _without_pass(values))
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
        if not -_LIMIT <= number < _LIMIT:
            raise ValueError
    if max(map(abs, (stream, block, candidate, stage))) >= _SMALL_LIMIT:
        raise ValueError
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

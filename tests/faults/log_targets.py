"""What reads logs, losses and their tables, as functions of bytes: see :mod:`.fuzz_targets`."""

from __future__ import annotations

import struct

import msgpack

from naspipe.config.errors import LogError
from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.store.access_log import read_access_log
from naspipe.store.access_segments import MAGIC, SCHEMA_VERSION, encode_segment, segment_parts
from naspipe.store.event_log import read_events
from naspipe.store.frames import encode_frame, headed
from naspipe.store.losses import MAGIC as TABLES
from naspipe.store.losses import read_losses
from naspipe.store.tables import encode_table
from tests.faults.fuzz_target import Target, pieces, put, texts

LOG_HEADER = MAGIC + struct.pack("<I", SCHEMA_VERSION)
EVENTS_HEADER = b"NPEVENTS" + struct.pack("<I", 2)


def access_log(data, place):
    return read_access_log(put(place / "log", data))


def access_segments(data, place):
    """Heads and bodies whose checksums are right, whatever they say."""
    parts = pieces(data)
    if len(parts) % 2:
        raise LogError("expected pairs")
    pairs = zip(parts[::2], parts[1::2], strict=True)
    framed = b"".join(encode_frame(headed(*pair)) for pair in pairs)
    return read_access_log(put(place / "log", LOG_HEADER + framed))


def events(data, place):
    framed = b"".join(encode_frame(part) for part in pieces(data))
    return list(read_events(put(place / "events", EVENTS_HEADER + framed)))


def losses(data, place):
    return read_losses(put(place / "losses.jsonl", data))


def tables(data, place):
    """Of rows, framed as they should be, whatever they say."""
    framed = b"".join(encode_frame(part) for part in pieces(data))
    put(place / "losses.msgpack", TABLES + struct.pack("<I", 1) + framed)
    return read_losses(put(place / "losses.jsonl", b""))


def table_seeds(place):
    rows = [{"stream": 0, "sequence_id": y, "loss": y / 3, "bits": f"{y:08x}"} for y in range(5)]
    return [encode_table(rows), encode_table([*rows[:2], {**rows[2], "batch": "ab"}])]


ACCESS = Access(LayerId(0, 3, 1), 5, AccessKind.FORWARD, 2, 1, 10, 20, 3, "")
LOGGED = [
    ACCESS._replace(layer=LayerId(0, 3, y % 2), sequence_id=y, kind=kind, start_ns=9 * y)
    for y in range(3) for kind in AccessKind
]  # fmt: skip


def log_seeds(place):
    segments = [encode_segment(LOGGED, 0), encode_segment([ACCESS._replace(digest="ab")], 1)]
    return [LOG_HEADER + b"".join(map(encode_frame, segments)), LOG_HEADER, b""]


def segment_seeds(place):
    return [b"\xfe\xfe".join(segment_parts(each, 0)) for each in (LOGGED, [ACCESS])]


LOSS = '{"stream": 0, "sequence_id": 0, "loss": 1.5, "bits": "3fc00000"}\n'

LOG_TARGETS = {
    "access log": Target(access_log, (LogError,), log_seeds),
    "access segments": Target(access_segments, (LogError,), segment_seeds),
    "events": Target(events, (LogError,), lambda place: [msgpack.packb([0, 1, 2]), b"\x93\0\1\2"]),
    "losses": Target(losses, (LogError,), texts(LOSS, LOSS + LOSS.replace("_id\": 0", "_id\": 1"))),
    "tables of losses": Target(tables, (LogError,), table_seeds),
}  # fmt: skip

"""What reads logs, losses and their tables, as functions of bytes: see :mod:`.fuzz_targets`."""

from __future__ import annotations

import struct

import msgpack

from naspipe.core.access import Access, AccessKind
from naspipe.core.errors import LogError
from naspipe.core.ids import LayerId
from naspipe.trace.access.event_log import read_events
from naspipe.trace.access.log import read_access_log
from naspipe.trace.access.records import MAGIC, ROWS, SCHEMA_VERSION
from naspipe.trace.access.segments import encode_segment, segment_parts
from naspipe.trace.results.losses_file import read_losses
from naspipe.trace.results.rolled_lines import MAGIC as TABLES
from naspipe.trace.storage.framing import encode_frame
from naspipe.trace.storage.headed_frames import headed
from naspipe.trace.storage.tables import encode_table
from tests.faults.fuzz_target import Target, pieces, put, texts
from tests.trace.old_format import row

LOG_HEADER = MAGIC + struct.pack("<I", SCHEMA_VERSION)
ROWS_HEADER = MAGIC + struct.pack("<I", ROWS)
OLD_LOG_HEADER = MAGIC + struct.pack("<I", 2)
EVENTS_HEADER, OLD_EVENTS_HEADER = (b"NPEVENTS" + struct.pack("<I", v) for v in (2, 1))


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


def access_records(data, place, header=ROWS_HEADER):
    framed = b"".join(encode_frame(part) for part in pieces(data))
    return read_access_log(put(place / "log", header + framed))


def events(data, place, header=EVENTS_HEADER):
    framed = b"".join(encode_frame(part) for part in pieces(data))
    return list(read_events(put(place / "events", header + framed)))


def old_access_records(data, place):
    return access_records(data, place, OLD_LOG_HEADER)


def old_events(data, place):
    return events(data, place, OLD_EVENTS_HEADER)


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


def row_seeds(place):
    return [msgpack.packb(row(access)) for access in (ACCESS, ACCESS._replace(digest="ab"))]


def old_record_seeds(place):
    return [msgpack.packb([0, 5, 0, "F", 3, 1, 2, 1, 0, 10, 20, 3, "ab"])]


def old_event_seeds(place):
    task = ["Task", 0, 5, 0, ["TaskKind", "F"], 1]
    events = (["InputArrived", 7, task, ["tuple", task]], ["BlockFinished", 9, task, 2, 8])
    return list(map(msgpack.packb, events))


LOSS = '{"stream": 0, "sequence_id": 0, "loss": 1.5, "bits": "3fc00000"}\n'

LOG_TARGETS = {
    "access log": Target(access_log, (LogError,), log_seeds),
    "access segments": Target(access_segments, (LogError,), segment_seeds),
    "access records": Target(access_records, (LogError,), row_seeds),
    "events": Target(events, (LogError,), lambda place: [msgpack.packb([0, 1, 2]), b"\x93\0\1\2"]),
    "old access records": Target(old_access_records, (LogError,), old_record_seeds),
    "old events": Target(old_events, (LogError,), old_event_seeds),
    "losses": Target(losses, (LogError,), texts(LOSS, LOSS + LOSS.replace("_id\": 0", "_id\": 1"))),
    "tables of losses": Target(tables, (LogError,), table_seeds),
}  # fmt: skip

"""Run directories as earlier versions wrote them.

Access logs of version 3 have a record for each access; those of version 2, like event logs of
version 1, have the number of a pass in it, always 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack

from naspipe.core.access import Access
from naspipe.trace.access.stored import read_columns
from naspipe.trace.storage.framing import FramedWriter, read_frames

ACCESS_MAGIC, EVENT_MAGIC = b"NASPIPEA", b"NPEVENTS"


def make_old(run: Path, version: int = 2) -> Path:
    """Rewrite the logs of a run; returns it."""
    for path in run.glob("access/*.msgpack"):
        messages = [
            row(access, generation, version)
            for generation, columns in read_columns(path)
            for access in columns.accesses()
        ]
        path.unlink()
        write_old(path, ACCESS_MAGIC, version, messages)
    for path in run.glob("events/*.msgpack"):
        _rewrite(path, EVENT_MAGIC, 2, 1, _event_with_pass)
    return run


def row(access: Access, generation: int = 0, version: int = 3) -> list[Any]:
    """One access as version 2 or 3 has it."""
    layer, y, kind, of_layer, *rest, digest, _ = access
    stage, start_ns, end_ns, stalled_ns = rest
    number = [0] if version == 2 else []
    place = [layer.stream, y, *number, kind.value, layer.block, layer.candidate]
    return [*place, of_layer, stage, generation, start_ns, end_ns, stalled_ns, digest]


def write_old(path: Path, magic: bytes, version: int, messages: list[Any]) -> None:
    """A log of these messages."""
    with FramedWriter(path, magic, version) as frames:
        for message in messages:
            frames.append(msgpack.packb(message))


def _rewrite(path: Path, magic: bytes, version: int, old_version: int, change: Any) -> None:
    messages = [change(msgpack.unpackb(payload)) for payload in read_frames(path, magic, version)]
    path.unlink()
    write_old(path, magic, old_version, messages)


def _event_with_pass(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    match value:
        case ["Task", stream, sequence_id, kind, stage, 0]:
            return ["Task", stream, sequence_id, 0, kind, stage]
        case ["InputArrived", time_ns, task, upcoming, "chain"]:
            value = ["InputArrived", time_ns, task, upcoming]
        case ["ContributionArrived", time_ns, "norms", *rest]:
            return ["NormsArrived", time_ns, *rest]
    return [_event_with_pass(item) for item in value]

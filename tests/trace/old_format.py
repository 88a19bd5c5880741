"""Run directories as they were written while tasks and accesses had the number of a pass, always 0.

That is version 2 of the access log and version 1 of the event log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack

from naspipe.trace.storage.framing import FramedWriter, read_frames

ACCESS_MAGIC, EVENT_MAGIC = b"NASPIPEA", b"NPEVENTS"


def make_old(run: Path) -> Path:
    """Rewrite the logs of a run; returns it."""
    for path in run.glob("access/*.msgpack"):
        _rewrite(path, ACCESS_MAGIC, 3, 2, lambda values: [*values[:2], 0, *values[2:]])
    for path in run.glob("events/*.msgpack"):
        _rewrite(path, EVENT_MAGIC, 2, 1, _event_with_pass)
    return run


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

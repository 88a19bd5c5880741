"""Events of a run's teachers: a file of JSON lines for each group that requested labels.

Every event has a time and the fields that ``_FIELDS`` lists. A run that was killed may leave a torn
line, after which its next attempt continues. Readers skip lines that are not events.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from naspipe.config.text import parse_json
from naspipe.store.files import writing

COUNTED = ("asked", "answered", "repeated", "dropped", "audited", "missed", "refused")

_FIELDS: dict[str, dict[str, type]] = {
    "begin": {"generation": int},
    "joined": {"teacher": str, "seconds": float},
    "left": {"teacher": str},
    "dismissed": {"teacher": str},
    "moved": {"teacher": str},
    "released": {"teacher": str},
    "refused": {"teacher": str, "why": str},
    "hire": {"count": int},
    "counts": {"teacher": str, **dict.fromkeys(COUNTED, int)},
    "doubt": {"batch": int},
    "settled": {},
    "end": {"audits_missed": int, "seconds_missing": float},
}


def teacher_events_file(directory: Path, number: int) -> Path:
    """Return the path of a group's file in its stream's directory."""
    return directory / f"teachers-{number}.jsonl"


def read_teacher_events(directory: Path) -> list[dict[str, Any]]:
    """Return all events by attempt (``generation``) and time, with the group as ``student``.

    Each attempt may have its own clock.
    """
    found = [
        {**event, "student": path.stem.removeprefix("teachers-")}
        for path in _files(directory)
        for event in _events(path)
    ]
    return sorted(found, key=lambda each: (each["generation"], each["time_ns"]))


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob("teachers-*.jsonl"))


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield events in the order written, each with its ``generation``."""
    generation = 0
    for line in path.read_bytes().split(b"\n"):
        try:
            event = parse_json(line)
        except ValueError:
            continue
        if not isinstance(event, dict) or not _is_of(event.get("time_ns"), int):
            continue
        kind = event.get("event")
        fields = _FIELDS.get(kind) if isinstance(kind, str) else None
        if fields is not None and all(_is_of(event.get(name), of) for name, of in fields.items()):
            generation = event.get("generation", generation)
            yield {**event, "generation": generation}


def _is_of(value: Any, expected: type) -> bool:
    if expected is str:
        return isinstance(value, str)
    if type(value) is not int and (expected is int or not isinstance(value, float)):
        return False
    return bool(math.isfinite(value)) and 0 <= value < 1 << 63


def first_in_doubt(directory: Path) -> int | None:
    """Return the lowest batch whose label may be wrong according to earlier attempts, or None."""
    found = []
    for path in _files(directory):
        first: int | None = None
        for event in _events(path):
            if event["event"] == "doubt":
                first = event["batch"] if first is None else min(first, event["batch"])
            elif event["event"] == "settled":
                first = None
        found += [] if first is None else [first]
    return min(found, default=None)


def settle(directory: Path) -> None:
    """Record that no label is in doubt any more, because everything that used them was discarded.

    Raises:
        StorageError: if a file cannot be written.
    """
    line = json.dumps({"time_ns": time.monotonic_ns(), "event": "settled"})
    for path in _files(directory):
        with writing(path, len(line)), path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")  # the previous line may be torn


def tally(events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum up the counts of each teacher over all attempts; empty without events."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    refused: dict[str, str] = {}
    more: Counter[str] = Counter()
    for event in events:
        match event["event"]:
            case "counts":
                counts[event["teacher"]].update({name: event[name] for name in COUNTED})
            case "refused":
                refused[event["teacher"]] = event["why"]
            case "end":
                more["audits_missed"] += event["audits_missed"]
                more["seconds_missing"] += event["seconds_missing"]
    if not counts and not refused:
        return {}
    of_each = {name: dict(found) for name, found in sorted(counts.items())}
    return {"by_teacher": of_each, "refused": refused, **more}

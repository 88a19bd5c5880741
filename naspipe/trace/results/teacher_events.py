"""What a run says of its teachers: a file of lines for each stage that asked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from naspipe.core.errors import ConfigError
from naspipe.core.json_text import parse_json

_COUNTED = ("asked", "answered", "repeated", "dropped", "audited", "missed", "refused")


def teacher_events_file(directory: Path, number: int) -> Path:
    """Of a stream's directory and the group whose stage asked."""
    return directory / f"teachers-{number}.jsonl"


def read_teacher_events(directory: Path) -> list[dict[str, Any]]:
    """All that is there, by time; a torn last line is left out."""
    found = []
    for path in sorted(directory.glob("teachers-*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            try:
                found.append(dict(parse_json(line)))
            except (ConfigError, ValueError, TypeError):
                continue
    return sorted(found, key=lambda each: int(each.get("time_ns", 0)))


def tally(events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """By teacher, what it has done in all lives; empty without any events."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    refused: dict[str, str] = {}
    more: Counter[str] = Counter()
    for event in events:
        match event["event"]:
            case "counts":
                counts[event["teacher"]].update({name: event[name] for name in _COUNTED})
            case "refused":
                refused[event["teacher"]] = event["why"]
            case "end":
                more["audits_missed"] += event["audits_missed"]
                more["seconds_missing"] += event["seconds_missing"]
    if not counts and not refused:
        return {}
    of_each = {name: dict(found) for name, found in sorted(counts.items())}
    return {"by_teacher": of_each, "refused": refused, **more}

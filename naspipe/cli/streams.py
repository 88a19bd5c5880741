"""``--streams``: several runs side by side, from a number or from a file."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.config.text import parse_json

MAX_STREAMS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What may differ between streams that share a pipeline."""

    space: str
    scale: str
    data: str | None
    seed: int
    steps: int
    sampler: str


def parse_streams(text: str, arguments: argparse.Namespace) -> list[StreamOptions]:
    """``K``: the command's run with K seeds, counted up. Otherwise a file, a stream per line.

    Each line is a JSON object with some of ``space``, ``scale``, ``data``, ``seed``, ``steps``
    and ``sampler``; the others are the command's.

    Raises:
        ConfigError: for a number below 1 or too large, a file that cannot be read, or a line
            that is not such an object.
    """
    given = StreamOptions(
        **{field.name: getattr(arguments, field.name) for field in fields(StreamOptions)}
    )
    if text.isascii() and text.lstrip("-").isdigit() and len(text) < 20:
        count = int(text)
        if not 1 <= count <= MAX_STREAMS:
            raise ConfigError(f"--streams: expected 1 to {MAX_STREAMS} or a file, found {text}")
        return [replace(given, seed=given.seed + number) for number in range(count)]
    try:
        lines = Path(text).read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--streams: expected a number or a file with a JSON object a line, found {text!r:.80}"
            f" ({error})"
        ) from None
    streams = [
        _parse_line(line, f"{text}:{number}", given)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not 1 <= len(streams) <= MAX_STREAMS:
        raise ConfigError(
            f"--streams {text}: expected 1 to {MAX_STREAMS} streams, found {len(streams)}"
        )
    return streams


def _parse_line(line: str, place: str, given: StreamOptions) -> StreamOptions:
    known: dict[str, type] = {
        "space": str, "scale": str, "data": str, "seed": int, "steps": int, "sampler": str
    }  # fmt: skip
    try:
        found: Any = parse_json(line)
    except ValueError:
        found = None
    if not isinstance(found, dict) or any(
        type(value) is not known.get(key) for key, value in found.items()
    ):
        raise ConfigError(
            f"{place}: expected a JSON object with some of {', '.join(known)}, found {line!r:.80}"
        )
    return replace(given, **found)

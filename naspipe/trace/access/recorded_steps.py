"""Which steps an access log holds: each attempt of a run may record all of them, some or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import lcm
from typing import Any, NamedTuple

from naspipe.config.errors import ConfigError

RECORDED_STEPS = "recorded_steps"
"""The key of a manifest under which the spans are listed."""


class RecordedSpan(NamedTuple):
    """From pass ``first`` to the next span, every ``every``-th step is recorded; 0 for none."""

    first: int
    every: int


class SharedSpan(NamedTuple):
    """The passes from ``first`` up to ``end`` (None: to the end), as two logs both record them."""

    first: int
    end: int | None
    every: int


RecordedSpans = tuple[RecordedSpan, ...]
"""Of the log that the result of a run rests on, in order of passes."""


def continued(spans: RecordedSpans, first: int, every: int) -> RecordedSpans:
    """The spans of a run after another attempt has begun at pass ``first``.

    Whatever earlier attempts recorded from that pass on is done again and counts no more.
    """
    kept = tuple(span for span in spans if span.first < first)
    if kept and kept[-1].every == every:
        return kept
    return (*kept, RecordedSpan(first, every))


def recorded_spans(manifest: Mapping[str, Any]) -> RecordedSpans:
    """The spans that a manifest lists.

    The manifest of a simulated run lists none: its log has every step.

    Raises:
        ConfigError: when the manifest is damaged.
    """
    if RECORDED_STEPS not in manifest:
        return (RecordedSpan(0, 1),)
    listed = manifest[RECORDED_STEPS]
    try:
        spans = tuple(RecordedSpan(int(span["first"]), int(span["every"])) for span in listed)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"expected {RECORDED_STEPS} to be a list of spans: {error!r}") from error
    if any(span.every < 0 for span in spans):
        raise ConfigError(f"expected {RECORDED_STEPS} to be a list of spans, found {listed!r:.80}")
    return spans


def as_listed(spans: RecordedSpans) -> list[dict[str, int]]:
    """What a manifest says under :data:`RECORDED_STEPS`."""
    return [span._asdict() for span in spans]


def is_complete(spans: Iterable[RecordedSpan | SharedSpan]) -> bool:
    """Return True if the accesses of every step are recorded."""
    return all(span.every == 1 for span in spans)


def shared_spans(one: RecordedSpans, other: RecordedSpans) -> Iterator[SharedSpan]:
    """What two logs both record, in order of passes; ``every`` is 0 where one of them has nothing.

    Neighbouring spans of the same ``every`` are one span.
    """
    starts = sorted({0, *(span.first for span in (*one, *other))})
    found = [(first, lcm(_every_at(one, first), _every_at(other, first))) for first in starts]
    merged = [found[0], *(span for before, span in pairwise(found) if span[1] != before[1])]
    ends = [*(first for first, _ in merged[1:]), None]
    for (first, every), end in zip(merged, ends, strict=True):
        yield SharedSpan(first, end, every)


def unrecorded_steps(spans: Sequence[SharedSpan], passes: int = 1) -> str:
    """Which accesses cannot be compared because one of two runs did not record them; or nothing.

    Args:
        spans: what both logs hold.
        passes: of a step.
    """
    if is_complete(spans):
        return ""
    if [span.every for span in spans] == [0]:
        return "no step is recorded in both runs (access_log): the order was not compared"
    if len(spans) == 1:
        return (
            f"accesses of every {spans[0].every}th step only are compared: others were not "
            f"recorded (access_log)"
        )
    said = ", ".join(_span_text(span, passes) for span in spans)
    return (
        f"accesses are compared only where both runs recorded them (access_log, which changed "
        f"when a run was resumed): {said}"
    )


def _span_text(span: SharedSpan, passes: int) -> str:
    from_, to = span.first // passes, "" if span.end is None else f" to {span.end // passes - 1}"
    what = {0: "none", 1: "all"}.get(span.every, f"one step in {span.every}")
    return f"{what} from step {from_}{to}"


def _every_at(spans: RecordedSpans, number: int) -> int:
    return next((span.every for span in reversed(spans) if span.first <= number), 0)

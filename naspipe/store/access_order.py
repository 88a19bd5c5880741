"""Access order: which subnets read and wrote each layer, as in ``2F-2B-5F-5B-7F-7B``.

In every run, the order of an exact layer is that of sequential training. Depending on the setting
``access_log``, a log may omit steps; this module also finds the steps that two logs both have.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import lcm
from typing import Any, NamedTuple

from naspipe.config.errors import ConfigError, LogError
from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.store.access_columns import BACKWARD, WRITE, AccessColumns
from naspipe.store.access_log import time_key

_LETTERS = {AccessKind.FORWARD: "F", AccessKind.WRITE: "B"}
_MOST_ROWS = 1 << 22
Use = tuple[int, str]
"""A sequence ID and ``F`` for its READ or ``B`` for its WRITE."""


def reads_and_writes(accesses: Iterable[Access]) -> dict[LayerId, list[Access]]:
    """Return each layer's READs and WRITEs of all stages by start time; layers in chain order."""
    layers: dict[LayerId, list[Access]] = defaultdict(list)
    for access in accesses:
        if access.kind is not AccessKind.BACKWARD:
            layers[access.layer].append(access)
    return {layer: sorted(layers[layer], key=time_key) for layer in sorted(layers)}


def by_steps(reads_and_writes_of_layer: Sequence[Access], passes: int) -> list[Access]:
    """Return one exact layer's READs and WRITEs, with the WRITEs of each step moved to its end.

    The passes of a step read the same version, and only the last WRITE of a step creates the next
    one. Their order within a step depends on the number of groups and does not affect the result.
    The set of steps whose WRITEs precede a READ does not change.

    Args:
        reads_and_writes_of_layer: accesses in order of start time.
        passes: number of passes per step.
    """
    if passes == 1:
        return list(reads_and_writes_of_layer)
    last: dict[int, Access] = {}
    for access in reads_and_writes_of_layer:
        if access.kind is AccessKind.WRITE:
            step = access.sequence_id // passes
            last[step] = max(last.get(step, access), access, key=lambda each: each.sequence_id)
    ends = sorted(access.end_ns for access in last.values())

    def place(access: Access) -> tuple[int, bool, int]:
        if access.kind is AccessKind.WRITE:
            end_ns = last[access.sequence_id // passes].end_ns
            return bisect_left(ends, end_ns), True, access.sequence_id
        return bisect_right(ends, access.start_ns), False, access.sequence_id

    return sorted(reads_and_writes_of_layer, key=place)


def layer_order(reads_and_writes_of_layer: Sequence[Access]) -> list[Use]:
    """Return one layer's READs and WRITEs, in the given order."""
    return [(access.sequence_id, _LETTERS[access.kind]) for access in reads_and_writes_of_layer]


def access_orders(accesses: Iterable[Access]) -> dict[LayerId, str]:
    """Return each layer's access order as text; a frozen layer is never written: only ``F``."""
    return {
        layer: format_order(layer_order(records))
        for layer, records in reads_and_writes(accesses).items()
    }


def orders_of_layers(columns: AccessColumns) -> dict[LayerId, str]:
    """Return each layer's access order, from records in order of time."""
    return dict(orders_of_parts([columns]))


def orders_of_parts(parts: Iterable[AccessColumns]) -> Iterator[tuple[LayerId, str]]:
    """Yield each layer's access order from parts in order of time; needs 8 bytes per use."""
    uses: dict[LayerId, array[int]] = defaultdict(lambda: array("q"))
    for part in parts:
        for layer, rows in part.take(part.kind != BACKWARD).by_layer().items():
            uses[layer].frombytes((2 * rows.sequence_id + (rows.kind == WRITE)).tobytes())
    for layer in sorted(uses):
        yield layer, format_order((use >> 1, "FB"[use & 1]) for use in uses.pop(layer))


def with_settings(order: str, setting: Callable[[int], str]) -> str:
    """Add a text after each subnet of an order, as in ``4F[512]-4B[512]-7F[1024]``."""
    uses = parse_order(order)
    return "-".join(f"{number}{letter}{setting(number)}" for number, letter in uses)


def groups_of_layers(counts: Mapping[LayerId, int]) -> Iterator[frozenset[LayerId]]:
    """Yield groups of layers to read together, in chain order, so that memory stays bounded.

    ``counts`` is the number of records of each layer.
    """
    group: list[LayerId] = []
    size = 0
    for layer in sorted(counts):
        if group and size + counts[layer] > _MOST_ROWS:
            yield frozenset(group)
            group, size = [], 0
        group.append(layer)
        size += counts[layer]
    if group:
        yield frozenset(group)


def format_order(uses: Iterable[Use]) -> str:
    """Format ``[(2, "F"), (2, "B")]`` as ``2F-2B``."""
    return "-".join(f"{sequence_id}{letter}" for sequence_id, letter in uses)


def parse_order(text: str) -> list[Use]:
    """Invert :func:`format_order`; LogError for any other text."""
    if text and not re.fullmatch(r"\d+[FB](-\d+[FB])*", text):
        raise LogError(f"expected an access order such as 2F-2B-5F-5B, found {text!r:.80}")
    return [(int(use[:-1]), use[-1]) for use in text.split("-") if use]


RECORDED_STEPS = "recorded_steps"
"""The manifest key that holds the list of spans."""


class RecordedSpan(NamedTuple):
    """From pass ``first`` to the next span, every Nth step is recorded (0: none)."""

    first: int
    every: int


class SharedSpan(NamedTuple):
    """Every Nth step of the passes from ``first`` up to ``end`` (None: all) is in both logs."""

    first: int
    end: int | None
    every: int


RecordedSpans = tuple[RecordedSpan, ...]
"""Spans in order of passes, for the records on which the result of a run depends."""


def continued(spans: RecordedSpans, first: int, every: int) -> RecordedSpans:
    """Return the spans of a run after another attempt began at pass ``first``.

    Everything that earlier attempts recorded from that pass on is repeated and no longer counts.
    """
    kept = tuple(span for span in spans if span.first < first)
    if kept and kept[-1].every == every:
        return kept
    return (*kept, RecordedSpan(first, every))


def recorded_spans(manifest: Mapping[str, Any]) -> RecordedSpans:
    """Return the spans that a manifest lists; ConfigError if it is damaged.

    The manifest of a simulated run lists none, because its log has every step.
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
    """Return the value of :data:`RECORDED_STEPS` in a manifest."""
    return [span._asdict() for span in spans]


def is_complete(spans: Iterable[RecordedSpan | SharedSpan]) -> bool:
    """Return True if the accesses of every step are recorded."""
    return all(span.every == 1 for span in spans)


def shared_spans(one: RecordedSpans, other: RecordedSpans) -> Iterator[SharedSpan]:
    """Yield the spans that two logs both record, in order of passes; 0 if one records nothing.

    Adjacent spans with the same ``every`` are merged.
    """

    def every_at(spans: RecordedSpans, number: int) -> int:
        return next((span.every for span in reversed(spans) if span.first <= number), 0)

    starts = sorted({0, *(span.first for span in (*one, *other))})
    found = [(first, lcm(every_at(one, first), every_at(other, first))) for first in starts]
    merged = [found[0], *(span for before, span in pairwise(found) if span[1] != before[1])]
    ends = [*(first for first, _ in merged[1:]), None]
    for (first, every), end in zip(merged, ends, strict=True):
        yield SharedSpan(first, end, every)


def unrecorded_steps(spans: Sequence[SharedSpan], passes: int = 1) -> str:
    """Describe the accesses that cannot be compared because a run omitted them; empty if none.

    Args:
        spans: the steps that both logs have.
        passes: number of passes per step.
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
    said = []
    for span in spans:
        what = {0: "none", 1: "all"}.get(span.every, f"one step in {span.every}")
        to = "" if span.end is None else f" to {span.end // passes - 1}"
        said.append(f"{what} from step {span.first // passes}{to}")
    return (
        f"accesses are compared only where both runs recorded them (access_log, which changed "
        f"when a run was resumed): {', '.join(said)}"
    )

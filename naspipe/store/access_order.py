"""Access order: for each layer, who read and who wrote, as in ``2F-2B-5F-5B-7F-7B``.

The order of an exact layer is that of sequential training in every run. A log need not hold all
steps (the setting ``access_log``); this module also says which steps two logs both hold.
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
    """Each layer's READs and WRITEs over all stages in order of start time, by chain order."""
    layers: dict[LayerId, list[Access]] = defaultdict(list)
    for access in accesses:
        if access.kind is not AccessKind.BACKWARD:
            layers[access.layer].append(access)
    return {layer: sorted(layers[layer], key=time_key) for layer in sorted(layers)}


def by_steps(reads_and_writes_of_layer: Sequence[Access], passes: int) -> list[Access]:
    """One exact layer's READs and WRITEs, with the WRITEs of each step moved to its end.

    The passes of a step read one version concurrently, and only the last WRITE of a step creates
    the next, so their order within a step means nothing; it depends on groups. Which steps' WRITEs
    come before a READ stays as it was.

    Args:
        reads_and_writes_of_layer: in order of start time.
        passes: the number of passes of a step.
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
    """One layer's READs and WRITEs, in the given order."""
    return [(access.sequence_id, _LETTERS[access.kind]) for access in reads_and_writes_of_layer]


def access_orders(accesses: Iterable[Access]) -> dict[LayerId, str]:
    """Each layer's access order as text; a frozen layer, which is never written, has only ``F``."""
    return {
        layer: format_order(layer_order(records))
        for layer, records in reads_and_writes(accesses).items()
    }


def orders_of_layers(columns: AccessColumns) -> dict[LayerId, str]:
    """Each layer's access order, from records in order of time."""
    return dict(orders_of_parts([columns]))


def orders_of_parts(parts: Iterable[AccessColumns]) -> Iterator[tuple[LayerId, str]]:
    """Yield each layer's access order from parts in order of time; 8 bytes are kept per use."""
    uses: dict[LayerId, array[int]] = defaultdict(lambda: array("q"))
    for part in parts:
        for layer, rows in part.take(part.kind != BACKWARD).by_layer().items():
            uses[layer].frombytes((2 * rows.sequence_id + (rows.kind == WRITE)).tobytes())
    for layer in sorted(uses):
        yield layer, format_order((use >> 1, "FB"[use & 1]) for use in uses.pop(layer))


def with_settings(order: str, setting: Callable[[int], str]) -> str:
    """An order with a text after each subnet, as in ``4F[512]-4B[512]-7F[1024]``."""
    uses = parse_order(order)
    return "-".join(f"{number}{letter}{setting(number)}" for number, letter in uses)


def groups_of_layers(counts: Mapping[LayerId, int]) -> Iterator[frozenset[LayerId]]:
    """Yield layers to read together, in chain order, so that memory stays bounded.

    ``counts`` has the number of records of each layer.
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
    """``[(2, "F"), (2, "B")]`` as ``2F-2B``."""
    return "-".join(f"{sequence_id}{letter}" for sequence_id, letter in uses)


def parse_order(text: str) -> list[Use]:
    """Invert :func:`format_order`; LogError for any other text."""
    if text and not re.fullmatch(r"\d+[FB](-\d+[FB])*", text):
        raise LogError(f"expected an access order such as 2F-2B-5F-5B, found {text!r:.80}")
    return [(int(use[:-1]), use[-1]) for use in text.split("-") if use]


RECORDED_STEPS = "recorded_steps"
"""The key of a manifest under which the spans are listed."""


class RecordedSpan(NamedTuple):
    """From pass ``first`` to the next span, every Nth step is recorded; 0 for none."""

    first: int
    every: int


class SharedSpan(NamedTuple):
    """Every Nth step of the passes from ``first`` up to ``end`` (None: all) is in both logs."""

    first: int
    end: int | None
    every: int


RecordedSpans = tuple[RecordedSpan, ...]
"""In order of passes, for the log that the result of a run rests on."""


def continued(spans: RecordedSpans, first: int, every: int) -> RecordedSpans:
    """The spans of a run after another attempt began at pass ``first``.

    Whatever earlier attempts recorded from that pass on is done again and no longer counts.
    """
    kept = tuple(span for span in spans if span.first < first)
    if kept and kept[-1].every == every:
        return kept
    return (*kept, RecordedSpan(first, every))


def recorded_spans(manifest: Mapping[str, Any]) -> RecordedSpans:
    """The spans that a manifest lists; ConfigError if it is damaged.

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
    """The value of :data:`RECORDED_STEPS` in a manifest."""
    return [span._asdict() for span in spans]


def is_complete(spans: Iterable[RecordedSpan | SharedSpan]) -> bool:
    """Return True if the accesses of every step are recorded."""
    return all(span.every == 1 for span in spans)


def shared_spans(one: RecordedSpans, other: RecordedSpans) -> Iterator[SharedSpan]:
    """Yield what two logs both record, in order of passes; ``every`` is 0 if one has nothing.

    Neighbouring spans of the same ``every`` are one span.
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
    """Which accesses cannot be compared because one of two runs did not record them; or empty.

    Args:
        spans: what both logs hold.
        passes: the number of passes of a step.
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

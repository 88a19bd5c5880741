"""Access order: per layer, who read and who wrote, as in ``2F-2B-5F-5B-7F-7B``."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from naspipe.config.errors import LogError
from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.trace.access.columns import BACKWARD, FORWARD, WRITE, AccessColumns
from naspipe.trace.access.log import time_key

_LETTERS = {AccessKind.FORWARD: "F", AccessKind.WRITE: "B"}
_MOST_ROWS = 1 << 22
Use = tuple[int, str]
"""A sequence ID and ``F`` for its READ or ``B`` for its WRITE."""


def reads_and_writes(accesses: Iterable[Access]) -> dict[LayerId, list[Access]]:
    """Per layer, in chain order, its READs and WRITEs over all stages in order of start time."""
    layers: dict[LayerId, list[Access]] = defaultdict(list)
    for access in accesses:
        if access.kind is not AccessKind.BACKWARD:
            layers[access.layer].append(access)
    return {layer: sorted(layers[layer], key=time_key) for layer in sorted(layers)}


def by_steps(reads_and_writes_of_layer: Sequence[Access], passes: int) -> list[Access]:
    """One exact layer's READs and WRITEs, as if the WRITEs of a step were one, behind its READs.

    The passes of a step read one version side by side, and only the last WRITE of a step makes
    one. So their order within a step says nothing; it depends on groups. Which WRITEs of steps a
    READ comes behind stays as it was.

    Args:
        reads_and_writes_of_layer: in order of start time.
        passes: of a step.
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
    """One layer's READs and WRITEs, as given."""
    return [(access.sequence_id, _LETTERS[access.kind]) for access in reads_and_writes_of_layer]


def access_orders(accesses: Iterable[Access]) -> dict[LayerId, str]:
    """Each layer's access order as text; a frozen layer, never written, has only ``F``."""
    return {
        layer: format_order(layer_order(records))
        for layer, records in reads_and_writes(accesses).items()
    }


def orders_of_layers(columns: AccessColumns) -> dict[LayerId, str]:
    """The same of records in columns and in order of time."""
    letters = {FORWARD: "F", WRITE: "B"}
    found = {}
    for layer, rows in columns.take(columns.kind != BACKWARD).by_layer().items():
        uses = zip(rows.sequence_id.tolist(), rows.kind.tolist(), strict=True)
        found[layer] = format_order((y, letters[kind]) for y, kind in uses)
    return found


def orders_of_parts(parts: Iterable[AccessColumns]) -> Iterator[tuple[LayerId, str]]:
    """The same of a log that is read part by part; 8 bytes are held of each use."""
    uses: dict[LayerId, array[int]] = defaultdict(lambda: array("q"))
    for part in parts:
        for layer, rows in part.take(part.kind != BACKWARD).by_layer().items():
            uses[layer].frombytes((2 * rows.sequence_id + (rows.kind == WRITE)).tobytes())
    for layer in sorted(uses):
        yield layer, format_order((use >> 1, "FB"[use & 1]) for use in uses.pop(layer))


def with_settings(order: str, setting: Callable[[int], str]) -> str:
    """An order with what is said beside each subnet, as in ``4F[512]-4B[512]-7F[1024]``."""
    uses = parse_order(order)
    return "-".join(f"{number}{letter}{setting(number)}" for number, letter in uses)


def groups_of_layers(counts: Mapping[LayerId, int]) -> Iterator[frozenset[LayerId]]:
    """Layers that are read together, in chain order, so that memory stays bounded.

    Args:
        counts: how many records there are of each.
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
    """Read what :func:`format_order` makes.

    Raises:
        LogError: for any other text.
    """
    if text and not re.fullmatch(r"\d+[FB](-\d+[FB])*", text):
        raise LogError(f"expected an access order such as 2F-2B-5F-5B, found {text!r:.80}")
    return [(int(use[:-1]), use[-1]) for use in text.split("-") if use]

"""Sums of gradients between groups, as plain tables ready for JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from naspipe.config.ids import LayerId
from naspipe.report.reasons import Reason
from naspipe.report.reductions import Handover
from naspipe.report.waits import Wait

REDUCING = {Reason.REDUCTION: "sums", Reason.COPY: "copies", Reason.BUFFERS: "buffers"}
"""What stages wait for because passes of one step are computed in several groups."""


def reduction_columns(
    handovers: Sequence[Handover], places: Mapping[LayerId, int], start_ns: int
) -> dict[str, list[int]]:
    """Every sum, one column per field, by the time it could leave; ``layer`` is a row of layers.

    ``stage`` received it from ``sender``. It was joined by ``start + length``; in the stretch's
    last ``waited`` nanoseconds the receiver's own gradients were there already.
    """
    return {
        "stage": [each.joined.stage for each in handovers],
        "sender": [each.given.stage for each in handovers],
        "layer": [places.get(each.joined.layer, -1) for each in handovers],
        "block": [each.joined.layer.block for each in handovers],
        "given": [each.given.sequence_id for each in handovers],
        "joined": [each.joined.sequence_id for each in handovers],
        "start": [each.left_ns - start_ns for each in handovers],
        "length": [each.joined_ns - each.left_ns for each in handovers],
        "own": [each.own_ns - start_ns for each in handovers],
        "waited": [each.waited_ns for each in handovers],
    }


def reduction_routes(handovers: Iterable[Handover]) -> list[dict[str, int]]:
    """What went from each stage to each other one: sums, their time on the way, and WRITEs'
    waits for them."""
    routes: dict[tuple[int, int], list[Handover]] = defaultdict(list)
    for each in handovers:
        routes[each.given.stage, each.joined.stage].append(each)
    return [
        {
            "sender": sender,
            "stage": stage,
            "sums": len(sums),
            "way_ns": sum(each.joined_ns - each.left_ns for each in sums),
            "waits": sum(each.waited_ns > 0 for each in sums),
            "waited_ns": sum(each.waited_ns for each in sums),
        }
        for (sender, stage), sums in sorted(routes.items())
    ]


def reduction_numbers(
    handovers: Sequence[Handover], waits: Iterable[Wait], stages_ns: int
) -> dict[str, float]:
    """How many sums, and the share of all stages' time that nothing ran for want of one, of a copy
    or of buffers; empty where there were none."""
    if not handovers:
        return {}
    waited = sum(wait.end_ns - wait.start_ns for wait in waits if wait.reason in REDUCING)
    return {"num_sums": len(handovers), "reduction_ratio": waited / stages_ns if stages_ns else 0}


def reduction_line(tables: Mapping[str, Any]) -> str:
    """One line about a run's sums; empty where it has none."""
    numbers = tables["numbers"]
    if not numbers.get("num_sums"):
        return ""
    stages_ns = max(1, tables["num_stages"] * tables["end_ns"])
    waited = (
        f"{sum(tables['wait_totals_ns'][reason.value]) / stages_ns:.1%} for {what}"
        for reason, what in REDUCING.items()
    )
    return (
        f"{tables['name']}: {numbers['num_sums']} sums of gradients went from group to group; "
        f"stages waited {', '.join(waited)}"
    )

"""Everything that the page shows of one run, as plain tables ready for JSON.

Times are whole nanoseconds since the run's first record. One of the tables says how evenly the work
fell on the stages, over the run and for each subnet.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from naspipe.config.errors import ConfigError
from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.report.elastic_teachers import teacher_tables
from naspipe.report.in_words import in_words
from naspipe.report.layer_orders import layer_orders
from naspipe.report.reasons import Reason
from naspipe.report.recorded import Recorded
from naspipe.report.reduction_tables import reduction_columns, reduction_numbers, reduction_routes
from naspipe.report.reductions import Reductions
from naspipe.report.searches.search_tables import search_tables
from naspipe.report.stretches import thinned
from naspipe.report.summary import facts, numbers
from naspipe.report.teacher_time import with_teacher
from naspipe.report.time_bins import time_bins
from naspipe.report.waits import Wait, explain_waits
from naspipe.streams.from_file import read_stream
from naspipe.trace.access.log import time_key
from naspipe.trace.reading.metrics import warm_up_end_ns
from naspipe.trace.results.run_directory import RunDirectory


class StageBalance(NamedTuple):
    """Time of records, in nanoseconds, and where each subnet was cut.

    ``busy_ns[letter][stage]`` sums the run's forwards (``F``), backwards (``B``), WRITEs (``W``).
    For each subnet of ``subnets``: ``peak_to_mean`` is the busiest stage's time over the mean
    of all stages of its group (1 is perfect balance, their number is the worst), and
    ``first_blocks[stage]`` the first block of the chain that the stage ran, -1 for none.
    """

    busy_ns: dict[str, list[int]]
    subnets: list[int]
    peak_to_mean: list[float]
    first_blocks: list[list[int]]


def stage_balance(accesses: Sequence[Access], num_stages: int, num_groups: int = 1) -> StageBalance:
    """Measure the balance of a run; empty columns for an empty log.

    Args:
        accesses: its log.
        num_stages: of all groups.
        num_groups: each subnet goes through the stages of one of them.
    """
    of_each = num_stages // num_groups
    busy = {kind.value: [0] * num_stages for kind in AccessKind}
    by_subnet: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0] * num_stages)
    first: dict[tuple[int, int], list[int]] = defaultdict(lambda: [-1] * num_stages)
    for access in accesses:
        length_ns = access.end_ns - access.start_ns
        busy[access.kind.value][access.stage] += length_ns
        key = (access.layer.stream, access.sequence_id)
        by_subnet[key][access.stage] += length_ns
        known = first[key][access.stage]
        if known < 0 or access.layer.block < known:
            first[key][access.stage] = access.layer.block
    subnets = sorted(by_subnet)
    return StageBalance(
        busy,
        [number for _, number in subnets],
        [_peak_to_mean(by_subnet[key], of_each) for key in subnets],
        [[first[key][stage] for key in subnets] for stage in range(num_stages)],
    )


def _peak_to_mean(times_ns: Sequence[int], num_stages: int) -> float:
    total = sum(times_ns)
    return max(times_ns) * num_stages / total if total else 1.0


SHORTEST_WAIT_NS = 50_000
"""Shorter waits without a reason are left out of the timeline; every sum holds them."""


def _stream(run: Recorded) -> Sequence[Sequence[int]]:
    """The choices of every subnet, where orders say settings."""
    if not run.labels.has_settings:
        return ()
    try:
        return read_stream(RunDirectory(run.path).stream)
    except ConfigError:  # a report shows what is there
        return ()


def run_tables(run: Recorded, name: str) -> dict[str, Any]:
    """All tables of one run; ``name`` is what the page calls it."""
    accesses = sorted(run.accesses, key=time_key)
    waits = with_teacher(explain_waits(accesses, run.num_stages, run.schedule), run.teacher)
    bins = time_bins(accesses, waits, run.num_stages)
    layers = layer_orders(accesses, waits, run.labels, _stream(run))
    sums = Reductions(accesses, run.schedule.steps).handovers
    places = {row.layer: place for place, row in enumerate(layers)}
    start_ns = min((access.start_ns for access in accesses), default=0)
    end_ns = max((access.end_ns for access in accesses), default=0) - start_ns
    warm_up = warm_up_end_ns(accesses)
    totals = _totals(waits, run.num_stages)
    measured = {**numbers(run), **reduction_numbers(sums, waits, run.num_stages * end_ns)}
    return {
        "name": name,
        "remarks": run.remarks,
        "words": in_words(run, totals, end_ns),
        "num_stages": run.num_stages,
        "facts": facts(run),
        "numbers": {key: _finite(value) for key, value in measured.items()},
        "warm_up_ns": 0 if warm_up is None or run.whole else warm_up - start_ns,
        "end_ns": end_ns,
        "layers": [{**row._asdict(), "layer": list(row.layer)} for row in layers],
        "spans": _span_columns(accesses, places, start_ns),
        "waits": _wait_columns(waits, places, start_ns),
        "sums": reduction_columns(sums, places, start_ns),
        "routes": reduction_routes(sums),
        "wait_totals_ns": totals,
        "bins": bins._replace(edges_ns=[edge - start_ns for edge in bins.edges_ns])._asdict(),
        "balance": stage_balance(accesses, run.num_stages, run.num_groups)._asdict(),
        "losses": _loss_columns(run),
        "validations": _validation_columns(run),
        "searches": search_tables(run.path, run.labels.decided),
        "teachers": teacher_tables(run.teacher_events, run.lives, run.manifest, start_ns),
    }


def _loss_columns(run: Recorded) -> dict[str, Any]:
    streams, subnets, values = thinned(run.losses)
    return {"subnet": subnets, "stream": streams, "value": [_finite(value) for value in values]}


def _validation_columns(run: Recorded) -> dict[str, Any]:
    """Of each validation the last subnet whose update is in, and the scores; null for no number."""
    names = list(run.validations[0].scores) if run.validations else []
    rows = [[each.scores.get(name, math.nan) for name in names] for each in run.validations]
    return {
        "subnet": [each.sequence_id - 1 for each in run.validations],
        "scores": {
            name: [row[place] if math.isfinite(row[place]) else None for row in rows]
            for place, name in enumerate(names)
        },
    }


def _span_columns(
    accesses: Sequence[Access], places: Mapping[LayerId, int], start_ns: int
) -> dict[str, Any]:
    """Every record, one column per field; ``layer`` is a row of the layers' table.

    A backward of a frozen layer alone has no row there, because it has no order: -1.
    """
    return {
        "stage": [access.stage for access in accesses],
        "kind": "".join(access.kind.value for access in accesses),
        "subnet": [access.sequence_id for access in accesses],
        "layer": [places.get(access.layer, -1) for access in accesses],
        "version": [access.version for access in accesses],
        "start": [access.start_ns - start_ns for access in accesses],
        "length": [access.end_ns - access.start_ns for access in accesses],
        "stalled": [access.stalled_ns for access in accesses],
        "owed": [access.owed_ns for access in accesses],
    }


def _wait_columns(
    waits: Sequence[Wait], places: Mapping[LayerId, int], start_ns: int
) -> dict[str, Any]:
    """Waits to draw; of the records that explain each: kind, subnet, layer, stage, end."""
    drawn = [
        wait
        for wait in waits
        if wait.reason is not Reason.OTHER or wait.end_ns - wait.start_ns >= SHORTEST_WAIT_NS
    ]
    columns: dict[str, Any] = {
        "stage": [wait.stage for wait in drawn],
        "reason": [wait.reason.value for wait in drawn],
        "start": [wait.start_ns - start_ns for wait in drawn],
        "length": [wait.end_ns - wait.start_ns for wait in drawn],
    }
    for side in ("next", "cause", "blocked"):
        records: list[Access | None] = [getattr(wait, side) for wait in drawn]
        columns[side] = [
            None
            if record is None
            else [
                record.kind.value,
                record.sequence_id,
                places.get(record.layer, -1),
                record.stage,
                record.end_ns - start_ns,
            ]
            for record in records
        ]
    return columns


def _totals(waits: Sequence[Wait], num_stages: int) -> dict[str, list[int]]:
    """Nanoseconds that each stage waited, by reason."""
    totals = {reason.value: [0] * num_stages for reason in Reason}
    for wait in waits:
        totals[wait.reason.value][wait.stage] += wait.end_ns - wait.start_ns
    return totals


def _finite(value: float) -> float | str:
    """JSON knows no NaN and no infinity."""
    return value if math.isfinite(value) else str(value)

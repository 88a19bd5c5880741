"""The tables of one run that the page shows, as plain values for JSON, and the page itself.

Times are integer nanoseconds since the run's first record. The tables have the sums of gradients
between groups, the access order of every layer, the fractions of busy and waiting time, the balance
of work over the stages, the losses and the timeline. The page is one HTML file that contains the
tables, its script and plotly.js, for offline use. Its content security policy prevents the browser
from requesting anything.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from naspipe.config.errors import ConfigError
from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.report.in_words import in_words
from naspipe.report.recorded import Recorded, thinned
from naspipe.report.reductions import Handover, Reason, Reductions
from naspipe.report.searches import search_tables
from naspipe.report.summary import facts, numbers
from naspipe.report.teachers import teacher_tables, with_teacher
from naspipe.report.waits import Wait, explain_waits
from naspipe.store.access_log import time_key
from naspipe.store.access_order import format_order, layer_order, reads_and_writes, with_settings
from naspipe.store.files import atomic_file
from naspipe.store.labels import SpaceLabels
from naspipe.store.metrics import warm_up_end_ns
from naspipe.store.run_directory import RunDirectory
from naspipe.streams.stream_file import read_stream

# The page


_SCRIPTS = (
    "timeline.js",
    "sums.js",
    "teachers.js",
    "charts.js",
    "search.js",
    "winning.js",
    "alone.js",
    "page.js",
)


def write_page(path: Path, title: str, runs: Sequence[Mapping[str, Any]]) -> None:
    """Write the page of some runs, given by their :func:`run_tables`, atomically.

    ``title`` is plain text for the heading. An existing file is replaced.
    """
    from plotly.offline import get_plotlyjs  # takes half a second to import

    def asset(name: str) -> str:
        return files("naspipe.report").joinpath("assets", name).read_text("utf-8")

    def packed(text: str) -> str:
        """Deflate and encode as base64; browsers unpack it with ``DecompressionStream``."""
        return base64.b64encode(zlib.compress(text.encode(), 9)).decode()

    text = Template(asset("page.html")).substitute(
        title=title.replace("&", "&amp;").replace("<", "&lt;"),
        style=asset("style.css"),
        tables=packed(json.dumps({"runs": runs}, allow_nan=False, separators=(",", ":"))),
        plotly=packed(get_plotlyjs()),  # a third of the original size
        script="\n".join(map(asset, _SCRIPTS)),
    )
    with atomic_file(path) as file:
        file.write(text.encode())


# Sums of gradients between groups


REDUCING = {Reason.REDUCTION: "sums", Reason.COPY: "copies", Reason.BUFFERS: "buffers"}
"""Reasons for waits that occur because several groups compute the passes of one step."""


def reduction_columns(
    handovers: Sequence[Handover], places: Mapping[LayerId, int], start_ns: int
) -> dict[str, list[int]]:
    """Return every sum, one column per field, in the given order; ``layer`` is a row of layers.

    ``stage`` received it from ``sender``. It could be sent at ``start`` and was joined by ``start +
    length``; the receiver had its own gradients at ``own`` and waited for ``waited`` nanoseconds.
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


def _reduction_routes(handovers: Iterable[Handover]) -> list[dict[str, int]]:
    """Summarize, for each pair of stages, the sums sent, their transfer time and waits for them."""
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


def reduction_line(tables: Mapping[str, Any]) -> str:
    """Return one line about a run's sums; empty if it has none."""
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


# The access order of each layer, and the causal waits that it caused


class LayerOrder(NamedTuple):
    """One layer; ``causal_ns`` is the sum of the stages' waits for its WRITEs.

    ``reduction_ns`` is the sum of waits for data of other groups: gradients, copies and buffers.
    """

    layer: LayerId
    label: str
    rule: str
    reads: int
    writes: int
    order: str
    causal_ns: int
    causal_waits: int
    reduction_ns: int


def layer_orders(
    accesses: Sequence[Access],
    waits: Iterable[Wait],
    labels: SpaceLabels,
    stream: Sequence[Sequence[int]] = (),
) -> list[LayerOrder]:
    """Return all used layers in chain order; their orders show settings if a stream is given."""
    waited: dict[LayerId, list[int]] = defaultdict(list)
    reduced: dict[LayerId, int] = defaultdict(int)
    for wait in waits:
        if wait.reason is Reason.CAUSAL and wait.cause is not None:
            waited[wait.cause.layer].append(wait.end_ns - wait.start_ns)
        if wait.reason in REDUCING and wait.cause is not None:
            reduced[wait.cause.layer] += wait.end_ns - wait.start_ns
    rows = []
    for layer, records in reads_and_writes(accesses).items():
        writes = sum(access.kind is AccessKind.WRITE for access in records)
        order = format_order(layer_order(records))
        rows.append(
            LayerOrder(
                layer=layer,
                label=labels.full_label(layer),
                rule=labels.rule_text(layer),
                reads=len(records) - writes,
                writes=writes,
                order=with_settings(order, labels.settings(layer, stream)) if stream else order,
                causal_ns=sum(waited[layer]),
                causal_waits=len(waited[layer]),
                reduction_ns=reduced[layer],
            )
        )
    return rows


# Fractions of time over the run


BUSY = "busy"
NUM_BINS = 120


class TimeBins(NamedTuple):
    """Bins of equal length from the run's first record to its last.

    ``shares[stage][name][bin]`` is the fraction of a bin's time that the stage was ``busy``, or
    waited for a reason (by :class:`Reason`'s value); the sum over all names is 1. ``hits[bin]`` and
    ``reads[bin]`` count forwards and backwards by start time.
    """

    edges_ns: list[int]
    shares: list[dict[str, list[float]]]
    hits: list[int]
    reads: list[int]


def time_bins(
    accesses: Sequence[Access], waits: Iterable[Wait], num_stages: int, num_bins: int = NUM_BINS
) -> TimeBins:
    """Distribute waits over bins; time without waits is busy. Empty for an empty log."""
    if not accesses:
        return TimeBins([], [], [], [])
    start = min(access.start_ns for access in accesses)
    length = max(access.end_ns for access in accesses) - start
    num_bins = max(1, min(num_bins, length))
    edges = [start + length * place // num_bins for place in range(num_bins + 1)]

    def bin_of(time_ns: int) -> int:
        """Return the bin of a time; the last bin includes the run's end."""
        return min(num_bins - 1, bisect_right(edges, time_ns) - 1)

    waited = [{reason.value: [0] * num_bins for reason in Reason} for _ in range(num_stages)]
    for wait in waits:
        column, now = waited[wait.stage][wait.reason.value], wait.start_ns
        place = bin_of(now)
        while now < wait.end_ns:
            is_last = place == num_bins - 1
            until = wait.end_ns if is_last else min(wait.end_ns, edges[place + 1])
            column[place] += until - now
            now, place = until, place + 1
    widths = [max(1, high - low) for low, high in pairwise(edges)]
    shares = []
    for columns in waited:
        own = {
            name: [spent / width for spent, width in zip(column, widths, strict=True)]
            for name, column in columns.items()
        }
        idle = [sum(column) for column in zip(*own.values(), strict=True)]
        shares.append({BUSY: [1 - share for share in idle], **own})

    hits, reads = [0] * num_bins, [0] * num_bins
    for access in accesses:
        if access.kind is not AccessKind.WRITE:
            place = bin_of(access.start_ns)
            reads[place] += 1
            hits[place] += access.is_hit
    return TimeBins(edges, shares, hits, reads)


# Balance of work over the stages


class StageBalance(NamedTuple):
    """Total time of records, in nanoseconds, and the partition of each subnet.

    ``busy_ns[letter][stage]`` is the time of forwards (``F``), backwards (``B``) and WRITEs (``W``)
    of the run. For each subnet of ``subnets``, ``peak_to_mean`` is the busiest stage's time divided
    by the mean over the stages of its group (1 is perfect balance, the number of stages the worst),
    and ``first_blocks[stage]`` is the first block of the chain that the stage ran, or -1.
    """

    busy_ns: dict[str, list[int]]
    subnets: list[int]
    peak_to_mean: list[float]
    first_blocks: list[list[int]]


def stage_balance(accesses: Sequence[Access], num_stages: int, num_groups: int = 1) -> StageBalance:
    """Compute the balance of a run; columns are empty for an empty log.

    ``num_stages`` includes all groups; each subnet passes through the stages of one group.
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
        [
            max(times_ns) * of_each / total if (total := sum(times_ns)) else 1.0
            for times_ns in map(by_subnet.__getitem__, subnets)
        ],
        [[first[key][stage] for key in subnets] for stage in range(num_stages)],
    )


# The tables of a run


SHORTEST_WAIT_NS = 50_000
"""The timeline omits shorter waits without a known reason; all totals include them."""


def run_tables(run: Recorded, name: str) -> dict[str, Any]:
    """Return all tables of one run; ``name`` is its name on the page."""
    accesses = sorted(run.accesses, key=time_key)
    waits = with_teacher(explain_waits(accesses, run.num_stages, run.schedule), run.teacher)
    stream: Sequence[Sequence[int]] = ()
    if run.labels.has_settings:
        with suppress(ConfigError):  # a report shows what is available
            stream = read_stream(RunDirectory(run.path).stream)
    layers = layer_orders(accesses, waits, run.labels, stream)
    places = {row.layer: place for place, row in enumerate(layers)}
    start_ns = min((access.start_ns for access in accesses), default=0)
    end_ns = max((access.end_ns for access in accesses), default=0) - start_ns
    warm_up = warm_up_end_ns(accesses)
    bins = time_bins(accesses, waits, run.num_stages)
    totals = {reason.value: [0] * run.num_stages for reason in Reason}
    for wait in waits:
        totals[wait.reason.value][wait.stage] += wait.end_ns - wait.start_ns

    measured = numbers(run)
    sums = Reductions(accesses, run.schedule.steps).handovers
    if sums:
        waited = sum(sum(totals[reason.value]) for reason in REDUCING)
        stages_ns = run.num_stages * end_ns
        measured["num_sums"] = len(sums)
        measured["reduction_ratio"] = waited / stages_ns if stages_ns else 0

    streams, subnets, values = thinned(run.losses)
    names = list(run.validations[0].scores) if run.validations else []
    scores = {name: [each.scores.get(name, math.nan) for each in run.validations] for name in names}
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
        "routes": _reduction_routes(sums),
        "wait_totals_ns": totals,
        "bins": bins._replace(edges_ns=[edge - start_ns for edge in bins.edges_ns])._asdict(),
        "balance": stage_balance(accesses, run.num_stages, run.num_groups)._asdict(),
        "losses": {"subnet": subnets, "stream": streams, "value": list(map(_finite, values))},
        "validations": {
            "subnet": [each.sequence_id - 1 for each in run.validations],
            "scores": {
                name: [value if math.isfinite(value) else None for value in column]
                for name, column in scores.items()
            },
        },
        "searches": search_tables(run.path, run.labels.decided),
        "teachers": teacher_tables(run.teacher_events, run.lives, run.manifest, start_ns),
    }


def _span_columns(
    accesses: Sequence[Access], places: Mapping[LayerId, int], start_ns: int
) -> dict[str, Any]:
    """Return every record, one column per field; ``layer`` is a row of the layers' table.

    The row is -1 for a layer that has only backwards, and therefore no order.
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
    """Return the waits to draw, with kind, subnet, layer, stage and end of explaining records."""
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


def _finite(value: float) -> float | str:
    """Convert NaN and infinity, which JSON does not have, to text."""
    return value if math.isfinite(value) else str(value)

"""Everything that the page shows of one run, as plain tables ready for JSON, and the page itself.

Times are whole nanoseconds since the run's first record. The tables hold the sums of gradients
between groups, the access order of every layer, the shares of busy and waiting time, how evenly the
work fell on the stages, the losses and the timeline. The page is one HTML file with the tables, its
script and plotly.js inside, for use offline. A content security policy in the file keeps the
browser from requesting anything.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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


def render_page(title: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """The page's HTML.

    Args:
        title: plain text for the heading.
        runs: the tables of each run, from :func:`naspipe.report.run_tables.run_tables`.
    """
    from plotly.offline import get_plotlyjs  # takes half a second to import

    return Template(_asset("page.html")).substitute(
        title=title.replace("&", "&amp;").replace("<", "&lt;"),
        style=_asset("style.css"),
        tables=_packed(json.dumps({"runs": runs}, allow_nan=False, separators=(",", ":"))),
        plotly=_packed(get_plotlyjs()),  # a third of its length
        script="\n".join(_asset(name) for name in _SCRIPTS),
    )


def write_page(path: Path, title: str, runs: Sequence[Mapping[str, Any]]) -> None:
    """Write the page; it appears whole or not at all, in place of a file of that name."""
    text = render_page(title, runs)
    with atomic_file(path) as file:
        file.write(text.encode())


def _packed(text: str) -> str:
    """A text, deflated, in base64: browsers unpack it with ``DecompressionStream``."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _asset(name: str) -> str:
    return files("naspipe.report").joinpath("assets", name).read_text("utf-8")


# Sums of gradients between groups


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


# Each layer's access order, and the causal waits that it caused


class LayerOrder(NamedTuple):
    """One layer; ``causal_ns`` sums the waits of stages for one of its WRITEs.

    ``reduction_ns`` sums those for what groups send one another: its gradients, copies, buffers.
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
    """Every layer that was used, in chain order; orders say settings where a stream is given."""
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


# Shares of time over the run


BUSY = "busy"
NUM_BINS = 120


class TimeBins(NamedTuple):
    """Equal stretches from the run's first record to its last.

    ``shares[stage][name][bin]`` is the share of a bin's time that the stage was ``busy``, or
    waited for a reason (by :class:`Reason`'s value); over the names they add up to 1.
    ``hits[bin]`` and ``reads[bin]`` count forwards and backwards by the time they began.
    """

    edges_ns: list[int]
    shares: list[dict[str, list[float]]]
    hits: list[int]
    reads: list[int]


def time_bins(
    accesses: Sequence[Access], waits: Iterable[Wait], num_stages: int, num_bins: int = NUM_BINS
) -> TimeBins:
    """Distribute waits over bins; what no wait covers is busy. Empty for an empty log."""
    if not accesses:
        return TimeBins([], [], [], [])
    start = min(access.start_ns for access in accesses)
    length = max(access.end_ns for access in accesses) - start
    num_bins = max(1, min(num_bins, length))
    edges = [start + length * place // num_bins for place in range(num_bins + 1)]
    waited = [{reason.value: [0] * num_bins for reason in Reason} for _ in range(num_stages)]
    for wait in waits:
        _spread(waited[wait.stage][wait.reason.value], edges, wait.start_ns, wait.end_ns)
    widths = [max(1, high - low) for low, high in pairwise(edges)]
    hits, reads = [0] * num_bins, [0] * num_bins
    for access in accesses:
        if access.kind is not AccessKind.WRITE:
            place = _bin(edges, access.start_ns)
            reads[place] += 1
            hits[place] += access.is_hit
    return TimeBins(edges, [_shares(stage, widths) for stage in waited], hits, reads)


def _shares(waited: dict[str, list[int]], widths: Sequence[int]) -> dict[str, list[float]]:
    shares = {
        name: [spent / width for spent, width in zip(column, widths, strict=True)]
        for name, column in waited.items()
    }
    idle = [sum(column) for column in zip(*shares.values(), strict=True)]
    return {BUSY: [1 - share for share in idle], **shares}


def _bin(edges: Sequence[int], time_ns: int) -> int:
    """The bin that a moment falls in; the last one holds the run's end too."""
    return min(len(edges) - 2, bisect_right(edges, time_ns) - 1)


def _spread(column: list[int], edges: Sequence[int], start_ns: int, end_ns: int) -> None:
    place = _bin(edges, start_ns)
    while start_ns < end_ns:
        until = end_ns if place + 2 == len(edges) else min(end_ns, edges[place + 1])
        column[place] += until - start_ns
        start_ns, place = until, place + 1


# How evenly the work fell on the stages


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


# The tables of a run


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

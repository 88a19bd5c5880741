"""Table 4: the order in which subnets 2, 5 and 7 use one layer, on real stage processes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from naspipe.streams.stream_file import write_stream
from scripts.paper import published
from scripts.paper.common import Headline, Options, Result, real_run

SPACE = "scripts.paper.waiting:space"
BLOCKS, SUBNETS = 8, 12
USERS = (2, 5, 7)
LAYER = "2.0"
"""In stage 1 of 4 and in stage 2 of 8."""
RUNS = [(p, n, 0) for p in ("csp", "bsp", "asp") for n in (4, 8)] + [("bsp", 4, 3)]
"""Policy, stages, and the size of a bulk; 0 for as many as there are stages."""


def run(options: Options) -> Result:
    """Train twelve subnets of which three share their layers."""
    with tempfile.TemporaryDirectory() as scratch:
        stream = Path(scratch) / "stream.jsonl"
        write_stream(stream, [_choices(number) for number in range(SUBNETS)])
        rows = [_row(policy, stages, bulk, stream) for policy, stages, bulk in RUNS]
    causal = [row["order"] for row in rows if row["policy"] == "csp"]
    return Result(
        experiment="table4",
        title="Table 4: accesses of one layer",
        kind="real",
        rows=rows,
        headlines=[
            Headline(
                f"{row['policy']}, {row['stages']} stages, bulk {row['bulk'] or '-'}",
                row["order"],
                row["paper"] or "-",
            )
            for row in rows
        ],
        differs=(
            "blocks wait 10 ms (forward) and 20 ms (backward) as on a device of their own, so that "
            "8 processes overlap on any machine; the paper does not say how large GPipe's bulk is: "
            "with as many subnets as stages, 5 and 7 fall into one bulk on 4 stages; a bulk of 3 "
            "gives its order; PipeDream's depends on the stage the layer is in and on timing"
        ),
        settings={"subnets": SUBNETS, "blocks": BLOCKS, "layer": LAYER},
        holds=set(causal) == {published.TABLE4["csp", 4]},
    )


def _choices(number: int) -> list[int]:
    return [0 if number in USERS else number + 1] * BLOCKS


def _row(policy: str, stages: int, bulk: int, stream: Path) -> dict[str, Any]:
    found = real_run(
        space=SPACE, data="scripts.paper.waiting:batches", policy=policy, stages=stages, bulk=bulk,
        steps=SUBNETS, sampler=f"file:{stream}", layer=LAYER,
        execution={"partition": "static", "order": "paper"},
    )  # fmt: skip
    shown = bulk or (stages if policy == "bsp" else 0)
    paper = published.TABLE4[policy, stages]
    return {
        "policy": policy, "stages": stages, "bulk": shown, "order": found["access_order"],
        "paper": paper, "same": found["access_order"] == paper,
    }  # fmt: skip


def draw(result: Result, figure: Any) -> None:
    """Each access as a mark, in the order in which they happened."""
    figure.set_size_inches(8, 3.6)
    axis = figure.subplots()
    colours = {str(user): f"C{place}" for place, user in enumerate(USERS)}
    labels = []
    for place, row in enumerate(result.rows):
        bulk = f", bulk {row['bulk']}" if row["bulk"] else ""
        labels.append(f"{row['policy']}, {row['stages']} stages{bulk}")
        for step, access in enumerate(row["order"].split("-")):
            is_forward = access.endswith("F")
            axis.text(
                step, -place, access, ha="center", va="center", fontsize=9,
                color="white" if is_forward else colours[access[:-1]],
                bbox={"boxstyle": "round", "edgecolor": colours[access[:-1]],
                      "facecolor": colours[access[:-1]] if is_forward else "white"},
            )  # fmt: skip
    axis.set_xlim(-0.6, 5.6)
    axis.set_ylim(0.6 - len(labels), 0.6)
    axis.set_yticks([-place for place in range(len(labels))], labels)
    axis.set_xticks([])
    axis.set_title("accesses of one layer over time (F forward, B backward)")

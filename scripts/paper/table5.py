"""Table 5: what layers cost here, beside the paper's milliseconds; profiled."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import search_spaces
from scripts.paper import published
from scripts.paper.common import Headline, Options, Result, grouped_bars
from scripts.paper.systems import family_of, footprints
from search_spaces.table5 import BYTES_PER_NS, ROWS

SPACES = ("nlp.c3", "cv.c3")


def run(options: Options) -> Result:
    """Profile one space of each family and pick the paper's layers."""
    rows = [
        row
        for space in options.spaces or SPACES
        for row in rows_of(space, options.scale, options.is_real)
    ]
    return Result(
        experiment="table5",
        title="Table 5: forward, backward and swap-in times",
        kind="real",
        rows=rows,
        headlines=[
            Headline(
                f"{row['layer']}, backward over forward; forward over the first layer's",
                f"{row['backward_ratio']:.2f}; {row['relative_forward']:.2f}",
                f"{row['paper_backward_ratio']:.2f}; {row['paper_relative_forward']:.2f}",
            )
            for row in rows
        ],
        differs=(
            f"a CPU core at the scale {options.scale} instead of an RTX 2080 Ti at full width, so "
            "compare ratios, not milliseconds; our candidates include a norm and a residual sum, "
            "light convolutions their gate and projections too; "
            "the swap time is that of our layer's parameters at the paper's scale at 12 GB/s"
        ),
        settings={"scale": options.scale},
    )


def rows_of(space: str, scale: str, is_fresh: bool) -> list[dict[str, Any]]:
    """One row for each of the paper's layers of this space's family."""
    command = [sys.executable, "-m", "naspipe", "profile", space, "--scale", scale, "--json"]
    command += ["--fresh"] if is_fresh else []
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kind = next(k for k in json.loads(said)["kinds"] if k["kind"] in ("encoder", "cell"))
    names = search_spaces.candidate_names(space)
    block = 1  # the first choice block, behind the embedding or the stem
    rows: list[dict[str, Any]] = []
    for paper_name, operation in published.TABLE5_NAMES[family_of(space)].items():
        candidate = next(k for k, name in enumerate(names) if name.startswith(f"{operation},"))
        cost = next(line for line in kind["layers"] if line["candidate"] == candidate)
        paper = ROWS[paper_name]
        parameter_bytes = footprints(space).candidates(block)[candidate].parameter_bytes
        rows.append(
            {
                "layer": paper_name,
                "ours": names[candidate],
                "forward_ms": cost["forward_ns"] / 1e6,
                "backward_ms": cost["backward_ns"] / 1e6,
                "swap_ms_at_paper_scale": parameter_bytes / BYTES_PER_NS / 1e6,
                "paper_forward_ms": paper.forward_ms,
                "paper_backward_ms": paper.backward_ms,
                "paper_swap_ms": paper.swap_ms,
            }
        )
    for row in rows:
        first = rows[0]
        row["backward_ratio"] = row["backward_ms"] / row["forward_ms"]
        row["paper_backward_ratio"] = row["paper_backward_ms"] / row["paper_forward_ms"]
        row["relative_forward"] = row["forward_ms"] / first["forward_ms"]
        row["paper_relative_forward"] = row["paper_forward_ms"] / first["paper_forward_ms"]
    return rows


def draw(result: Result, figure: Any) -> None:
    """Ratios beside ratios."""
    figure.set_size_inches(12, 4)
    axes = figure.subplots(1, 3)
    layers = [row["layer"] for row in result.rows]
    for axis, name, title in (
        (axes[0], "backward_ratio", "backward / forward"),
        (axes[1], "relative_forward", "forward / that of the first layer"),
    ):
        series = {
            label: [row[f"{prefix}{name}"] for row in result.rows]
            for label, prefix in (("here", ""), ("the paper", "paper_"))
        }
        grouped_bars(axis, layers, series)
        axis.set_title(title)
    swaps = {
        "our layers at paper scale": [row["swap_ms_at_paper_scale"] for row in result.rows],
        "the paper": [row["paper_swap_ms"] for row in result.rows],
    }
    grouped_bars(axes[2], layers, swaps)
    axes[2].set_title("swap in, ms")
    for axis in axes:
        axis.tick_params(axis="x", rotation=60)
        axis.legend(fontsize="small", loc="upper right")

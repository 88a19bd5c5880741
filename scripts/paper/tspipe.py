"""TSPipe's Table 2 by its shape: how full a teacher makes a pipeline, simulated."""

from __future__ import annotations

from typing import Any

from scripts.paper import orders, published
from scripts.paper.common import Headline, Options, Result, grouped_bars
from scripts.paper.table6 import span
from scripts.teachers_simulated import Setting, utilisation

STAGES = (2, 4, 8)
CASES = ((1, 1.0), (1, 2.0), (2, 0.5), (2, 1.0))
"""Views, and the teacher's forward over the student's."""
BLOCKS = 64
"""Of each network: between them a stage may switch to other work. A task of the student may have to
wait for one block of the teacher, so fewer blocks are further off the closed form: see
:func:`finer`."""
TOLERANCE = 0.02
"""Off the closed form."""
FILLED = 0.97
WAYS: dict[str, dict[str, Any]] = {
    "same_step": {"lag": 0},
    "one_old": {"lag": 1},
    "two_old": {"lag": 2},
    "frozen": {"lag": None},
    "model_parallel": {"lag": 0, "order": "model-parallel"},
}
"""Of the teacher; ``same_step`` in GPipe's order and model parallel are what the paper compares
with."""


def run(options: Options) -> Result:
    """Every number of stages, case and way."""
    rows = [
        row_of(stages, views, ratio, batches)
        for stages in options.stages or STAGES
        for views, ratio in CASES
        for batches in (stages - 1, 2 * (stages - 1))
    ]
    wrong = faults(rows)
    return Result(
        experiment="tspipe",
        title="TSPipe's Table 2: how busy stages are, by how old the teacher is",
        kind="simulated",
        rows=rows,
        headlines=headlines(rows, wrong),
        differs=DIFFERS,
        settings={"blocks": BLOCKS, "order": "paper"},
        extra={"published": published.TSPIPE, "finer": finer()},
        holds=not wrong,
    )


DIFFERS = (
    "nothing was measured on V100s, and what a teacher's forward costs over the student's is not "
    "published, so ranges stand beside ranges. A backward is twice a forward; messages and the "
    "optimizer take nothing. The paper's backward micro-batches have half the size of the forward "
    "ones; a pass has one size here"
)


def row_of(stages: int, views: int, ratio: float, batches: int) -> dict[str, Any]:
    """The share of time that stages are busy, and what the closed form says."""
    orders.register()
    row: dict[str, Any] = {"stages": stages, "views": views, "ratio": ratio, "batches": batches}
    usual = {
        "stages": stages, "batches": batches, "views": views, "ratio": ratio,
        "parts": BLOCKS // stages,
    }  # fmt: skip
    for name, way in WAYS.items():
        setting = Setting(**usual, **way)
        row[name] = utilisation(setting)
        row[f"{name}_formula"] = setting.formula
    row["is_filled"] = Setting(**usual, lag=1).is_filled
    row["gpipe"] = utilisation(Setting(**usual, lag=0, order="gpipe"))
    return row


def finer() -> list[dict[str, Any]]:
    """How far the worst case is off the closed form, by the blocks of each network."""
    found = []
    for blocks in (16, 32, 64, 128):
        usual = {"stages": 8, "batches": 7, "ratio": 2.0, "parts": blocks // 8}
        for name in ("one_old", "frozen"):
            setting = Setting(**usual, **WAYS[name])
            off = setting.formula - utilisation(setting)
            found.append({"blocks": blocks, "teacher": name, "off": off})
    return found


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """What of the shape is not so."""
    found = []
    for row in rows:
        name = f"{row['stages']} stages, {row['views']} x {row['batches']}, r {row['ratio']:g}"
        for way in WAYS:
            if abs(row[f"{way}_formula"] - row[way]) > TOLERANCE:
                found.append(f"{name}: {way} {row[way]:.3f} of {row[f'{way}_formula']:.3f}")
        for way in ("one_old", "two_old", "frozen"):
            if row["is_filled"] and row[way] < FILLED:
                found.append(f"{name}: {way} is not full, {row[way]:.3f}")
        if row["one_old"] <= row["same_step"]:
            found.append(f"{name}: an older teacher gains nothing")
    return found


def headlines(rows: list[dict[str, Any]], wrong: list[str]) -> list[Headline]:
    """Gains over GPipe and model parallel, and what does not hold."""
    most = max(row["stages"] for row in rows)
    some = [row for row in rows if row["stages"] == most]
    of_paper = published.TSPIPE.values()
    found = [
        Headline(
            f"one step old over GPipe, {most} stages",
            span(row["one_old"] / row["gpipe"] for row in some),
            f"TSPipe, 8 GPUs: {span(t / g for _, g, t in of_paper)}",
        ),
        Headline(
            f"one step old over model parallel, {most} stages",
            span(row["one_old"] / row["model_parallel"] for row in some),
            f"TSPipe, 8 GPUs: {span(t / m for m, _, t in of_paper)}",
        ),
        Headline(
            "busy where r * passes >= 3 * (stages - 1): one step old, frozen",
            span(row[way] for row in rows if row["is_filled"] for way in ("one_old", "frozen")),
            "1 (claimed)",
        ),
        Headline(
            "two views, r 1, 4 stages, 3 micro-batches: one step old over the same step",
            span(
                row["one_old"] / row["same_step"]
                for row in rows
                if (row["stages"], row["views"], row["ratio"], row["batches"]) == (4, 2, 1.0, 3)
            )
            if any(row["stages"] == 4 for row in rows)
            else "-",
            "-",
        ),
    ]
    return found + ([Headline("not so", "; ".join(wrong), "-")] if wrong else [])


def draw(result: Result, figure: Any) -> None:
    """Each case of the most stages, by how old the teacher is."""
    figure.set_size_inches(11, 4.5)
    axes = figure.subplots()
    most = max(row["stages"] for row in result.rows)
    some = [row for row in result.rows if row["stages"] == most]
    names = [f"{r['views']} x {r['batches']}\nr {r['ratio']:g}" for r in some]
    ways = ("model_parallel", "gpipe", "same_step", "one_old", "frozen")
    grouped_bars(axes, names, {way.replace("_", " "): [r[way] for r in some] for way in ways})
    axes.axhline(1, color="black", lw=0.8)
    axes.set_title(f"share of time that {most} stages are busy; views x micro-batches")
    axes.set_ylim(0, 1.2)
    axes.legend(fontsize="small", ncols=5, loc="upper center")

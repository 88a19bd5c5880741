"""Draw the ratios of speed that scripts/measure.py leaves: artifacts/measured.png.

Every pair of runs is a dot, the median a stroke, and the target, where there is one, a small
vertical line. Whatever is further to the right is faster.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.bench_scaling import BESIDE, SAMPLERS  # noqa: E402

SPACES = ("nlp.c1", "nlp.c3", "cv.c1", "cv.c3")


class Row(NamedTuple):
    """What was measured against what."""

    label: str
    ratios: Sequence[float]
    """Of steps or subnets per second, one for each pair."""
    target: float | None = None


def rows_of(artifacts: Path) -> list[Row]:
    """Of the results that are there, those of speed, in the order of the README's table."""
    return [
        *_scaling(artifacts / "scaling"), *_search(artifacts / "search/throughput.json"),
        *_budget(artifacts / "residency/pairs.json"),
        *_checkpoints(artifacts / "faults/checkpoint_cost.json"),
    ]  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _scaling(folder: Path) -> Iterator[Row]:
    first = _read(folder / "nlp.c1.json")
    for over, under in (("2", "1"), ("2", BESIDE)):
        for sampler in SAMPLERS:
            if found := first.get(f"{sampler}: speed of {over} over {under}"):
                beside = "one" if under == "1" else under
                yield Row(f"two stages over {beside}, nlp.c1 {sampler}", found["values"])
    for space in SPACES:
        results = _read(folder / f"one_stage_{space}.json")
        for sampler in SAMPLERS:
            if found := results.get(f"{sampler}: speed of 1 over plain"):
                yield Row(f"one stage over a plain loop, {space} {sampler}", found["values"], 0.97)


def _search(path: Path) -> Iterator[Row]:
    if found := _read(path):
        yield Row("search, two stages over one", found["ratios"], 1.7)


def _budget(path: Path) -> Iterator[Row]:
    if found := _read(path):
        ratios = [
            pair["right"]["steps_per_second"] / pair["left"]["steps_per_second"]
            for pair in found["pairs"]
        ]
        yield Row("memory for 1.5 subnets over enough, nlp.c2", ratios, 1 / 1.1)


def _checkpoints(path: Path) -> Iterator[Row]:
    for sampler, found in _read(path).get("samplers", {}).items():
        ratios = [1 - pair["cost"] for pair in found["pairs"]]
        yield Row(f"checkpoints over none, nlp.c1 {sampler}", ratios, 0.97)


def draw(rows: Sequence[Row], path: Path) -> None:
    """A line for each row, the first on top."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(9, 1.2 + 0.3 * len(rows)), layout="constrained")
    for place, row in enumerate(rows):
        axis.scatter(row.ratios, [place] * len(row.ratios), s=14, color="C0", alpha=0.6)
        median = statistics.median(row.ratios)
        axis.plot([median] * 2, [place - 0.3, place + 0.3], color="C0", linewidth=2.5)
        if row.target is not None:
            axis.plot([row.target] * 2, [place - 0.4, place + 0.4], color="C3", linewidth=1)
    axis.plot([], [], color="C0", linewidth=2.5, label="median")
    axis.plot([], [], color="C3", linewidth=1, label="target: here, or further right")
    axis.axvline(1.0, color="grey", linewidth=0.8, zorder=0)
    axis.set_yticks(range(len(rows)), [row.label for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel("times as many steps (subnets, in a search) per second")
    axis.legend(fontsize="small", loc="lower right")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Read and draw."""
    rows = rows_of(ROOT / "artifacts")
    draw(rows, ROOT / "artifacts/measured.png")
    for row in rows:
        least, most = min(row.ratios), max(row.ratios)
        print(f"{row.label:50} {statistics.median(row.ratios):5.2f}  {least:.2f} to {most:.2f}")


if __name__ == "__main__":
    main()

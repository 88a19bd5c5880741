"""The README's picture: one training on one stage and on two, drawn from their access logs.

    scripts/draw_timeline.py

Every bar is a pass over some blocks: a colour is a subnet, a pale bar is its forward. What the runs
left is written below each: a digest of the last bytes that were written of every layer, and of all
losses. Writes artifacts/report/timeline.png.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.cli.main import main as naspipe  # noqa: E402
from naspipe.config.ids import Access, AccessKind  # noqa: E402
from naspipe.store.access_log import read_run_accesses  # noqa: E402
from naspipe.store.run_directory import RunDirectory  # noqa: E402
from scripts.paper.common import COLOURS, draw_to  # noqa: E402
from scripts.tiny_workload import tiny_workload  # noqa: E402


class Bar(NamedTuple):
    """A stage at work for one subnet without a break, in seconds."""

    stage: int
    subnet: int
    is_forward: bool
    start: float
    end: float


def bars_of(accesses: Sequence[Access]) -> list[Bar]:
    """What each stage did; neighbours of one task are one bar, WRITEs belong to the backward."""
    first = min(access.start_ns for access in accesses)

    def task(access: Access) -> tuple[int, int, bool]:
        return access.stage, access.sequence_id, access.kind is AccessKind.FORWARD

    ordered = sorted(accesses, key=lambda access: (access.stage, access.start_ns))
    return [
        Bar(*name, (own[0].start_ns - first) / 1e9, (max(a.end_ns for a in own) - first) / 1e9)
        for name, group in groupby(ordered, task)
        if (own := list(group))
    ]


def digest_of(path: Path) -> str:
    """Of all losses, and of the last bytes that were written of every layer."""
    written = {
        access.layer: access.digest
        for access in sorted(read_run_accesses(path), key=lambda access: access.sequence_id)
        if access.kind is AccessKind.WRITE
    }
    losses = [loss.value.hex() for loss in RunDirectory(path).read_losses()]
    found = [f"{layer} {digest}" for layer, digest in sorted(written.items())]
    return hashlib.blake2b("\n".join([*losses, *found]).encode(), digest_size=6).hexdigest()


def draw(runs: dict[int, tuple[list[Bar], str]], subnets: range, figure: Any) -> None:
    """A panel for each number of stages, all with the same seconds."""
    figure.set_size_inches(9.5, 0.9 + 0.42 * sum(runs) + 0.5 * len(runs))
    axes = figure.subplots(
        len(runs), 1, squeeze=False, gridspec_kw={"height_ratios": [n + 0.6 for n in runs]}
    )[:, 0]
    shown = {n: [bar for bar in bars if bar.subnet in subnets] for n, (bars, _) in runs.items()}
    width = max(max(b.end for b in own) - min(b.start for b in own) for own in shown.values())
    for axis, (count, own) in zip(axes, shown.items(), strict=True):
        begin = min(bar.start for bar in own)
        for bar in own:
            colour = COLOURS[bar.subnet % len(COLOURS)]
            wide = bar.end - bar.start
            axis.barh(
                bar.stage, wide, left=bar.start - begin, height=0.82, color=colour,
                alpha=0.45 if bar.is_forward else 0.95, linewidth=0,
            )  # fmt: skip
            if wide > 0.012 * width:
                place = bar.start - begin + wide / 2
                ink = "black" if bar.is_forward else "white"
                at = {"ha": "center", "va": "center", "fontsize": 6, "color": ink}
                axis.text(place, bar.stage, bar.subnet, **at)
        took = max(bar.end for bar in own) - begin
        title = f"{count} stage{'s' * (count > 1)}: {len(subnets)} subnets in {took:.2f} s"
        axis.set_title(f"{title}, result {runs[count][1]}", fontsize=9, loc="left")
        axis.set_xlim(0, width)
        axis.set_ylim(count - 0.5, -0.5)
        axis.set_yticks(range(count), [f"stage {n}" for n in range(count)], fontsize=8)
        axis.tick_params(axis="x", labelsize=8)
    axes[-1].set_xlabel("seconds", fontsize=8)


def main(words: Sequence[str] | None = None) -> int:
    """Train, draw; exit status 1 when the results differ."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--space", default="nlp.c1")
    parser.add_argument("--sampler", default="spaced:8")
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--first", type=int, default=16, help="subnet to be drawn first")
    parser.add_argument("--count", type=int, default=12, help="subnets to draw")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/report/timeline.png")
    arguments = parser.parse_args(words)
    tiny_workload(arguments.space)
    runs = {}
    with tempfile.TemporaryDirectory() as scratch:
        for stages in arguments.stages:
            path = Path(scratch) / str(stages)
            how = [
                arguments.space, "--sampler", arguments.sampler, "--steps", str(arguments.steps),
                "--stages", str(stages), "--seed", "1", "--digests", "--run-dir", str(path),
            ]  # fmt: skip
            if status := naspipe(["train", *how]):
                return status
            runs[stages] = bars_of(list(read_run_accesses(path))), digest_of(path)
    subnets = range(arguments.first, arguments.first + arguments.count)
    draw_to(arguments.output, lambda figure: draw(runs, subnets, figure))
    digests = {digest for _, digest in runs.values()}
    print(f"{arguments.output}: {', '.join(sorted(digests))}")
    return 0 if len(digests) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())

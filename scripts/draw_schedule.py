"""Draw what the stages of a run did in a few of its steps, its teacher included, as an SVG.

With --blockwise it trains first: six blocks that MobileNetV2's teach, with and without a barrier.
With --split it simulates six subnets on three stages, with whole and with split backwards.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.config.ids import Access, AccessKind  # noqa: E402
from naspipe.store.access_log import read_joint_accesses  # noqa: E402
from naspipe.store.compare import RecordedRun  # noqa: E402

WIDTH, LANE, MARGIN, LABEL, TITLE = 1000, 34, 24, 70, 22
COLOURS = {
    "teacher's forward": "#8fbf8f", "student's forward": "#7aa6d8",
    "student's backward": "#3b5f93", "WRITE": "#d98a4a",
}  # fmt: skip
TITLES = {
    "barrier": "with a barrier: all blocks end a step together",
    "decoupled": "without (decoupled)",
}


class Recorded(NamedTuple):
    """A run as it is drawn."""

    title: str
    stages: int
    passes: int
    students: list[list[Access]]
    """Of each trained stream."""
    teachers: list[list[Access]]

    def span(self, first: int, count: int) -> tuple[int, int]:
        """From the first student's beginning of a step to the last one's end of a later one."""
        found = [(a.sequence_id // self.passes, a) for log in self.students for a in log]
        start = min(access.start_ns for step, access in found if step == first)
        return start, max(access.end_ns for step, access in found if step < first + count)

    def bars(self) -> Iterator[tuple[str, Access]]:
        """Every access with what its bar stands for."""
        yield from (("teacher's forward", access) for log in self.teachers for access in log)
        for access in (access for log in self.students for access in log):
            is_write = access.kind is AccessKind.WRITE
            yield "WRITE" if is_write else f"student's {access.kind.name.lower()}", access


def recorded(path: Path, title: str = "") -> Recorded:
    """A run with the teacher that it may have, or a blockwise distillation."""
    students = sorted(path.glob("block-*")) or [path]
    teachers = [*sorted(path.glob("teacher-*")), *filter(Path.is_dir, [path / "teacher"])]
    logs, run = read_joint_accesses([*students, *teachers]), RecordedRun(students[0])
    count = len(students)
    return Recorded(title, run.num_stages, run.passes_per_step, logs[:count], logs[count:])


def drawing(runs: Sequence[Recorded], first: int, count: int) -> str:
    """Steps ``first`` to ``first + count - 1`` of each run, the runs below each other on one scale.

    Each lane is a stage. A bar's height tells odd steps from even ones: those are lower.
    """
    spans = [run.span(first, count) for run in runs]
    scale = (WIDTH - LABEL - MARGIN) / max(stop - start for start, stop in spans)
    parts, top = [], MARGIN
    for run, (start, _) in zip(runs, spans, strict=True):
        if run.title:
            parts.append(f'<text x="{LABEL}" y="{top + 12}">{run.title}</text>')
            top += TITLE
        parts += _lanes(run, start, scale, top)
        top += LANE * run.stages + 6 * bool(run.title)
    parts += _legend(top + 12, COLOURS)
    return _svg(parts, top + MARGIN + 30)


def _svg(parts: Sequence[str], height: int) -> str:
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="13" shape-rendering="crispEdges">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *parts,
        "</svg>\n",
    ])  # fmt: skip


def _lanes(run: Recorded, start: int, scale: float, top: int) -> Iterator[str]:
    stop = start + int((WIDTH - LABEL - MARGIN) / scale)
    for stage in range(run.stages):
        lane = top + LANE * stage
        yield f'<text x="8" y="{lane + 20}">stage {stage}</text>'
        yield (
            f'<rect x="{LABEL}" y="{lane}" width="{WIDTH - LABEL - MARGIN}" height="{LANE - 6}" '
            f'fill="#f2f2f2"/>'
        )
    for kind, access in run.bars():
        if access.end_ns <= start or access.start_ns >= stop:
            continue
        left = LABEL + (max(access.start_ns, start) - start) * scale
        right = LABEL + (min(access.end_ns, stop) - start) * scale
        lower = 8 * (access.sequence_id // run.passes % 2 == 0)
        yield (
            f'<rect x="{left:.1f}" y="{top + LANE * access.stage + lower}" '
            f'width="{max(0.5, right - left):.1f}" height="{LANE - 6 - lower}" '
            f'fill="{COLOURS[kind]}"/>'
        )


def _legend(top: int, colours: Mapping[str, str]) -> Iterator[str]:
    for place, (name, colour) in enumerate(colours.items()):
        left = LABEL + 190 * place
        yield f'<rect x="{left}" y="{top}" width="14" height="14" fill="{colour}"/>'
        yield f'<text x="{left + 20}" y="{top + 12}">{name}</text>'


UNIT_NS = 1_000_000_000
"""Long enough that messages between stages take no time to speak of."""
SPLIT_COLOURS = {
    "forward": "#7aa6d8", "backward: inputs (B)": "#3b5f93", "backward: weights (W)": "#9d86c9",
    "update": "#d98a4a",
}  # fmt: skip
SUBNETS = ((0, 0, 0), (0, 1, 1), (1, 1, 0), (1, 0, 1), (0, 0, 1), (0, 1, 0))
"""Candidates of the three blocks that are drawn with --split."""


class Bar(NamedTuple):
    """A piece of work of one subnet."""

    kind: str
    stage: int
    subnet: int
    start_ns: int
    end_ns: int


def simulated(backward: str) -> list[Bar]:
    """Six subnets of three blocks on three stages; F, B and W take a unit each, an update 0.2."""
    from naspipe.config.execution import Execution
    from naspipe.config.ids import SequenceId, StreamId, Subnet
    from naspipe.config.rules import Exact
    from naspipe.plan.chains import Chain, Stream
    from naspipe.plan.costs import CostTable, LayerCost
    from naspipe.plan.pipeline import Pipeline, as_planned
    from naspipe.plan.simulation import chosen_plan, measured_timing, simulate_run

    cost = LayerCost(UNIT_NS, 2 * UNIT_NS, UNIT_NS // 5, 0, 0, UNIT_NS, UNIT_NS)
    costs = CostTable({(block, n): cost for block in range(3) for n in range(2)})
    chain = Chain(rules=(Exact(),) * 3, is_shared=(False,) * 3)
    subnets = tuple(Subnet(StreamId(0), SequenceId(y), c) for y, c in enumerate(SUBNETS))
    how = Execution(stages=3, order="critical-path", partition="static", backward=backward)
    pipeline = Pipeline(streams=(Stream(chain, subnets, costs),))
    plan = chosen_plan(pipeline, how, None, lambda one, memory: measured_timing(one, how, memory))
    planned = as_planned(pipeline, plan)
    run = simulate_run(planned, plan, how, measured_timing(planned, how, plan.memory))
    is_split = backward == "split"
    forward, inputs, weights, update = SPLIT_COLOURS
    bars = []
    for access in run.accesses:
        start, end = access.start_ns, access.end_ns
        if access.kind is AccessKind.FORWARD:
            parts = [(forward, start, end)]
        elif access.kind is AccessKind.BACKWARD:
            parts = [(inputs, start, start + UNIT_NS)]
            parts += [] if is_split else [(weights, start + UNIT_NS, end)]
        else:
            updated = end - UNIT_NS // 5
            parts = [(weights, start, updated)] if is_split else []
            parts.append((update, updated, end))
        bars += [Bar(kind, access.stage, access.sequence_id, *times) for kind, *times in parts]
    return bars


def split_drawing() -> str:
    """The same six subnets with whole and with split backwards, on one scale."""
    titles = {
        "whole": "whole: the gradients of a block's inputs and weights together",
        "split": "split: those of the inputs first, those of the weights before the update",
    }
    drawn = {title: simulated(backward) for backward, title in titles.items()}
    scale = (WIDTH - LABEL - MARGIN) / max(bar.end_ns for bars in drawn.values() for bar in bars)
    parts, top = [], MARGIN
    for title, bars in drawn.items():
        end = max(bar.end_ns for bar in bars) / UNIT_NS
        parts.append(f'<text x="{LABEL}" y="{top + 12}">{title} ({end:.1f} units)</text>')
        top += TITLE
        for stage in range(3):
            lane = top + LANE * stage
            parts.append(f'<text x="8" y="{lane + 20}">stage {stage}</text>')
            parts.append(
                f'<rect x="{LABEL}" y="{lane}" width="{WIDTH - LABEL - MARGIN}" '
                f'height="{LANE - 6}" fill="#f2f2f2"/>'
            )
        for bar in bars:
            left, width = LABEL + bar.start_ns * scale, (bar.end_ns - bar.start_ns) * scale
            lane = top + LANE * bar.stage
            parts.append(
                f'<rect x="{left:.1f}" y="{lane}" width="{width:.1f}" height="{LANE - 6}" '
                f'fill="{SPLIT_COLOURS[bar.kind]}" stroke="white"/>'
            )
            if width > 12:
                parts.append(
                    f'<text x="{left + width / 2:.1f}" y="{lane + 19}" fill="white" '
                    f'text-anchor="middle">{bar.subnet}</text>'
                )
        top += LANE * 3 + 6
    parts += _legend(top + 12, SPLIT_COLOURS)
    return _svg(parts, top + MARGIN + 30)


def blockwise(scratch: Path, steps: int) -> list[Recorded]:
    """Consecutive pairs on two stages, with a barrier and without."""
    import naspipe
    from scripts.bench.blockwise import PAIRS, parts

    teachers, students, data = parts(PAIRS["NAS"])
    for relay in TITLES:
        naspipe.distill_blockwise(
            teachers, students, data, steps=steps, stages=2, relay=relay, recipe="blockwise",
            execution={"partition": "pairs"}, run_dir=scratch / relay,
        )  # fmt: skip
    return [recorded(scratch / relay, title) for relay, title in TITLES.items()]


def main() -> None:
    """Write the drawing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", type=Path, help="a run directory")
    what.add_argument("--blockwise", action="store_true")
    what.add_argument("--split", action="store_true")
    parser.add_argument("--first", type=int, default=8, help="the first step to draw")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.split:
        arguments.output.write_text(split_drawing())
        return
    first, count = arguments.first, arguments.steps
    with tempfile.TemporaryDirectory() as scratch:
        runs = [recorded(arguments.run)] if arguments.run else blockwise(Path(scratch), first * 3)
        arguments.output.write_text(drawing(runs, first, count))


if __name__ == "__main__":
    main()

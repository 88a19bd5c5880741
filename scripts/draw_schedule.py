"""Draw what the stages of a run did in a few of its steps, its teacher included, as an SVG."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.core.access import Access, AccessKind  # noqa: E402
from naspipe.trace.access.log import read_joint_accesses  # noqa: E402
from naspipe.trace.reading.compare import RecordedRun  # noqa: E402

WIDTH, LANE, MARGIN, LABEL = 1000, 34, 24, 70
COLOURS = {
    "teacher's forward": "#8fbf8f", "student's forward": "#7aa6d8",
    "student's backward": "#3b5f93", "WRITE": "#d98a4a",
}  # fmt: skip


def kind_of(stream: int, access: Access) -> str:
    """What a bar stands for."""
    if access.kind is AccessKind.WRITE:
        return "WRITE"
    if stream:
        return "teacher's forward"
    return f"student's {access.kind.name.lower()}"


def drawing(path: Path, first: int, count: int) -> str:
    """Steps ``first`` to ``first + count - 1`` of a run.

    Each lane is a stage. A bar's height tells odd steps from even ones: those are lower.
    """
    run = RecordedRun(path)
    logs = read_joint_accesses([path, *filter(Path.is_dir, [path / "teacher"])])
    passes = run.passes_per_step
    ends = [each.end_ns for each in logs[0] if each.sequence_id // passes == first - 1]
    start = max(ends, default=0)
    stop = max(e.end_ns for e in logs[0] if e.sequence_id // passes == first + count - 1)
    scale = (WIDTH - LABEL - MARGIN) / (stop - start)
    height = MARGIN * 2 + LANE * run.num_stages + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for stage in range(run.num_stages):
        top = MARGIN + LANE * stage
        parts.append(f'<text x="8" y="{top + 20}">stage {stage}</text>')
        parts.append(
            f'<rect x="{LABEL}" y="{top}" width="{WIDTH - LABEL - MARGIN}" height="{LANE - 6}" '
            f'fill="#f2f2f2"/>'
        )
    for stream, log in enumerate(logs):
        for access in log:
            if access.end_ns <= start or access.start_ns >= stop:
                continue
            left = LABEL + (max(access.start_ns, start) - start) * scale
            right = LABEL + (min(access.end_ns, stop) - start) * scale
            is_even = access.sequence_id // passes % 2 == 0
            top = MARGIN + LANE * access.stage + (8 if is_even else 0)
            parts.append(
                f'<rect x="{left:.1f}" y="{top}" width="{max(0.5, right - left):.1f}" '
                f'height="{LANE - 6 - (8 if is_even else 0)}" '
                f'fill="{COLOURS[kind_of(stream, access)]}"/>'
            )
    left = LABEL
    for name, colour in COLOURS.items():
        top = MARGIN + LANE * run.num_stages + 12
        parts.append(f'<rect x="{left}" y="{top}" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{left + 20}" y="{top + 12}">{name}</text>')
        left += 190
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Write the drawing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--first", type=int, default=8, help="the first step to draw")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    arguments.output.write_text(drawing(arguments.run, arguments.first, arguments.steps))


if __name__ == "__main__":
    main()

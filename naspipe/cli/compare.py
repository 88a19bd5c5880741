"""Check whether runs are bit-identical, and show the first pass and layer that differ.

Every run is compared with the first one: the loss of every pass, every parameter, buffer and
optimizer state, and, for each layer, the order of WRITEs and the version that each READ saw.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from naspipe.cli.options import add_options
from naspipe.cli.output import add_json, as_json, print_table
from naspipe.config.errors import ConfigError, LogError
from naspipe.store.compare import Comparison, RecordedRun, compare_to
from naspipe.store.metrics import summarize_parts

_EXAMPLE = """\
example:
  naspipe compare runs/one-stage runs/two-stages runs/four-stages

exit status: 0 identical; 1 different; 2 not comparable
"""

_COLUMNS = ("run", "stages", "passes", "seconds", "passes/s", "bubble", "verdict")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE
    add_options(
        parser,
        """
        reference RUN  reference run directory
        others RUN+    run directories to compare with the reference
        """,
        reference=str,
        others=str,
    )
    add_json(parser, "a table")


def run(arguments: argparse.Namespace) -> int:
    """Print the table and the differences, including teachers; return the exit status."""
    runs = [arguments.reference, *arguments.others]
    teachers = [str(Path(each) / "teacher") for each in runs]
    has_teachers = all(Path(each).is_dir() for each in teachers)
    groups = [runs, teachers] if has_teachers else [runs]
    return compare_groups(groups, is_json=arguments.json)


def compare_groups(groups: Sequence[Sequence[str]], *, is_json: bool = False) -> int:
    """Compare the runs of each group to its first, in one table; return the exit status."""
    rows: list[tuple[str, ...]] = []
    comparisons: list[Comparison] = []
    try:
        for first, *others in groups:
            reference = RecordedRun(first)
            compared = [(each, compare_to(reference, each)) for each in map(RecordedRun, others)]
            is_read = any(not comparison.reason for _, comparison in compared)
            rows.append(_row(reference, "reference", is_read))
            for recorded, comparison in compared:
                verdict = "IDENTICAL" if comparison.is_identical else "DIFFERS"
                verdict = "NOT COMPARABLE" if comparison.reason else verdict
                rows.append(_row(recorded, verdict, not comparison.reason))
            comparisons += (comparison for _, comparison in compared)
    except LogError as error:
        raise ConfigError(f"cannot be compared: {error}") from error
    if is_json:
        print(as_json(_described(rows, comparisons)))
    else:
        left = ("run", "verdict")
        print_table(
            _COLUMNS, _shortened(rows), left=left, fold=("run",), overflow="crop", width=None
        )
    for comparison in () if is_json else comparisons:
        for warning in comparison.warnings:
            print(f"naspipe: warning: {comparison.run}: {warning}", file=sys.stderr)
        if not comparison.is_identical:
            print(f"{comparison.run}: {comparison}")
    if any(comparison.reason for comparison in comparisons):
        return 2
    return 0 if all(comparison.is_identical for comparison in comparisons) else 1


def _described(
    rows: Sequence[tuple[str, ...]], comparisons: Sequence[Comparison]
) -> dict[str, Any]:
    """Return the table, and for each run except a reference, its differences or an error."""
    numbers = ("stages", "passes", "seconds", "passes_per_second", "bubble_ratio")
    return {
        "runs": [
            {
                "run": row[0],
                **{
                    name: None if cell == "-" else float(cell)
                    for name, cell in zip(numbers, row[1:-1], strict=True)
                },
                "verdict": row[-1],
            }
            for row in rows
        ],
        "comparisons": [
            {
                "run": str(each.run),
                "is_identical": each.is_identical,
                "reason": each.reason or None,
                "warnings": list(each.warnings),
                "first": str(each.first) if each.first else None,
                "differences": len(each.differences),
            }
            for each in comparisons
        ],
    }


def _shortened(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the rows with runs named relative to their common folder, which is printed."""
    paths = [Path(row[0]).absolute() for row in rows]
    base = Path(os.path.commonpath([path.parent for path in paths]))
    print(f"runs in {os.path.relpath(base)}:")
    return [(str(path.relative_to(base)), *row[1:]) for path, row in zip(paths, rows, strict=True)]


def _row(recorded: RecordedRun, verdict: str, is_read: bool) -> tuple[str, ...]:
    """Return the cells of a run; without numbers if not comparable or the log is incomplete."""
    numbers: tuple[str, ...] = ("-",) * 4
    if is_read and recorded.has_whole_log:
        summary = summarize_parts(recorded.log.parts, recorded.num_stages)
        numbers = (
            str(summary.num_passes),
            f"{summary.seconds:.2f}",
            f"{summary.passes_per_second:.2f}",
            f"{summary.bubble_ratio:.3f}",
        )
    return (str(recorded.path), str(recorded.num_stages), *numbers, verdict)

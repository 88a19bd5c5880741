"""Prove that a change of the code changed no bit, and see whether it changed the speed.

BEFORE is a revision of this repository, checked out into a temporary work tree, or a path to a
checkout; the present code is that beside this script, with the changes that are not committed.
Both train a matrix of short runs, which `naspipe compare` of the present code judges; an
interrupted run and a search of BEFORE's runs go over from one version to the other. The exit
status is 1 when a row differs or fails. --speed measures both versions in alternation instead.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from rich.box import SIMPLE_HEAD  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn  # noqa: E402
from rich.table import Table  # noqa: E402

from naspipe.machine.determinism import describe_environment  # noqa: E402
from naspipe.store.files import write_json  # noqa: E402
from scripts.comparing import speed  # noqa: E402
from scripts.comparing.bits import FIRST_PORT, PORTS, Bench, Kind  # noqa: E402
from scripts.comparing.rows import QUICK, ROWS, Row  # noqa: E402
from scripts.comparing.versions import (  # noqa: E402
    CompareError,
    Version,
    Workplace,
    present,
    version_before,
)
from scripts.tiny_workload import tiny_workload  # noqa: E402

ARTIFACTS = ROOT / "artifacts/code"


def read_arguments() -> argparse.Namespace:
    """What to compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", metavar="BEFORE", help="a revision, or a path to a checkout")
    parser.add_argument("--quick", action="store_true", help="a few rows that have every value")
    parser.add_argument(
        "--rows", nargs="+", metavar="PATTERN",
        help="only rows whose name or one of whose words is so, as in 07, nlp.* or resume-*",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    parser.add_argument("--speed", action="store_true", help="measure speeds instead of bits")
    parser.add_argument("--pairs", type=int, default=5, help="of speeds (default: 5)")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="leave the runs of rows that differ there"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE",
        help=f"default: {ARTIFACTS.relative_to(ROOT)}/bits.json or speed.json where all rows are "
        f"run, otherwise none",
    )  # fmt: skip
    arguments = parser.parse_args()
    if arguments.pairs < 1:
        parser.error(f"--pairs: expected 1 or more, found {arguments.pairs}")
    return arguments


def is_chosen(patterns: Sequence[str] | None, *words: str) -> bool:
    """Whether a row's name or one of its words is asked for."""
    return patterns is None or any(
        fnmatch.fnmatchcase(word, pattern) for word in words for pattern in patterns
    )


def chosen_rows(arguments: argparse.Namespace) -> list[Row]:
    """Those of the matrix that are asked for."""
    rows = [row for row in ROWS if not arguments.quick or row.name in QUICK]
    return [row for row in rows if is_chosen(arguments.rows, row.name, *row.values.values())]


def chosen_speeds(arguments: argparse.Namespace) -> list[speed.SpeedRow]:
    """The speeds that are asked for."""
    rows = speed.SPEED_ROWS
    return [row for row in rows if is_chosen(arguments.rows, row.name, *row.name.split())]


@contextmanager
def progress_of(what: str, total: int, console: Console) -> Iterator[Progress]:
    """A bar below what is printed; its only task counts."""
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        progress.add_task(what, total=total)
        yield progress


def compare_bits(bench: Bench, rows: Sequence[Row], console: Console) -> list[dict[str, Any]]:
    """Every row's verdict, told as soon as it is known."""
    found = []
    with progress_of("rows", len(rows), console) as progress:
        for row in rows:
            found.append(bench.compare(row))
            line = f"{row.name} {found[-1]['verdict']:13} {row.text}"
            detail = found[-1]["detail"]
            console.print(f"{line}\n   {detail}" if detail else line, soft_wrap=True)
            progress.advance(progress.task_ids[0])
    return found


def compare_speeds(
    versions: tuple[Version, Version],
    place: Workplace,
    rows: Sequence[speed.SpeedRow],
    pairs: int,
    console: Console,
) -> tuple[list[dict[str, Any]], list[str]]:
    """A summary of every row that both versions can do, and why the others are not there."""
    speeds = {row: {version.name: [] for version in versions} for row in rows}
    refused: dict[speed.SpeedRow, str] = {}
    with progress_of("pairs", pairs * len(rows), console) as progress:
        for pair, row in itertools.product(range(pairs), rows):
            try:
                if row not in refused:
                    both = measure_pair(pair, row, versions, place)
                    told = ", ".join(f"{name} {value:.4g}" for name, value in both.items())
                    console.print(f"pair {pair + 1}: {row.name}: {told} {row.unit}", soft_wrap=True)
                    for name, value in both.items():
                        speeds[row][name].append(value)
            except CompareError as error:
                refused[row] = str(error)
                console.print(str(error), soft_wrap=True)
            progress.advance(progress.task_ids[0])
    found = [speed.summary(row, speeds[row]) for row in rows if row not in refused]
    return found, list(refused.values())


def measure_pair(
    pair: int, row: speed.SpeedRow, versions: tuple[Version, Version], place: Workplace
) -> dict[str, float]:
    """One figure of each version; whose turn it is first follows from the pair."""
    turn = speed.in_turn(pair, *versions)
    return {version.name: speed.measure(version, row, place) for version in turn}


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    """One line a row where the terminal is wide enough."""
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def do_bits(
    arguments: argparse.Namespace, versions: tuple[Version, Version], place: Workplace,
    console: Console,
) -> tuple[int, Path | None, dict[str, Any]]:  # fmt: skip
    """Run the rows; the exit status, where the result belongs, and the result."""
    rows = chosen_rows(arguments)
    port = FIRST_PORT + os.getpid() % PORTS * 10
    found = compare_bits(Bench(*versions, place, port, arguments.keep), rows, console)
    print_table(
        ("row", "verdict", "before s", "present s", "values"),
        [
            (
                each["row"], each["verdict"], str(each["seconds"].get("before", "-")),
                str(each["seconds"].get("present", "-")), each["values"],
            )
            for each in found
        ],
        console,
    )  # fmt: skip
    counts = {kind.value: sum(each["verdict"] == kind.value for each in found) for kind in Kind}
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    console.print(f"{len(found)} rows: {said}", soft_wrap=True)
    is_good = counts[Kind.IDENTICAL.value] > 0 and not (
        counts[Kind.DIFFERS.value] or counts[Kind.FAILED.value]
    )
    output = ARTIFACTS / "bits.json" if len(rows) == len(ROWS) else None
    return int(not is_good), output, {"counts": counts, "rows": found}


def do_speed(
    arguments: argparse.Namespace, versions: tuple[Version, Version], place: Workplace,
    console: Console,
) -> tuple[int, Path | None, dict[str, Any]]:  # fmt: skip
    """Measure the rows; the exit status, where the result belongs, and the result."""
    rows = chosen_speeds(arguments)
    found, refused = compare_speeds(versions, place, rows, arguments.pairs, console)
    columns = ("row", "unit", "before", "present", "present over before")
    print_table(columns, [speed.texts(each) for each in found], console)
    result = {"pairs": arguments.pairs, "rows": found, "refused": refused}
    return int(bool(refused)), speed.output_of(rows, ARTIFACTS), result


def compare(arguments: argparse.Namespace, console: Console) -> int:
    """Both versions side by side; returns the exit status.

    Raises:
        CompareError: when there is nothing to compare.
    """
    if not (chosen_speeds if arguments.speed else chosen_rows)(arguments):
        raise CompareError("--rows: expected one row at least, found none; see --list")
    for name in ("nlp.c1", "cv.c3"):
        tiny_workload(name)  # their data, which the other spaces share, are prepared
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="naspipe-code-") as scratch:
        place = Workplace(Path(scratch) / "work")
        with version_before(arguments.before, Path(scratch)) as before:
            versions = (before, present())
            described = {version.name: version.as_dict() for version in versions}
            for version in versions:
                place.check(version)
                console.print(f"{version.name}: {version.revision}")
            do = do_speed if arguments.speed else do_bits
            status, output, result = do(arguments, versions, place, console)
            if any(described[each.name]["source"] != each.digest for each in versions):
                raise CompareError("expected code that stays as it is meanwhile, found it changed")
    output = arguments.output or output
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        environment = describe_environment()
        seconds = round(time.monotonic() - start)
        write_json(output, {**described, "environment": environment, "seconds": seconds, **result})
    return status


def main() -> int:
    """Compare as the command line says."""
    arguments = read_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no work tree behind
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    if arguments.list:
        for row in chosen_rows(arguments):
            console.print(f"{row.name} {'quick' if row.name in QUICK else '     '} {row.text}")
        for each in chosen_speeds(arguments):
            console.print(each.name)
        return 0
    try:
        return compare(arguments, console)
    except CompareError as error:
        print(f"compare_code: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

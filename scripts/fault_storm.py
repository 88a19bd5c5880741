"""Seeded kills at every point of a run; each must end, after resumes, with the undisturbed bits.

With --groups the runs are on groups of stages, and every life has others: 4, 2, 1, 3. With
--blockwise they are blockwise distillations, and every life has other stages and another placement.
With --rings their activations go through shared memory, and stages are killed on that way.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.store.compare import compare_runs  # noqa: E402
from tests.faults import block_storm, ring_storm, storm  # noqa: E402


def verdict(whole: Path, path: Path) -> str:
    """``IDENTICAL``, or what differs first."""
    return str(compare_runs([whole, path])[0])


class Kind(NamedTuple):
    """Of what runs a storm is."""

    draw: Callable[[int], Any]
    """The case of a seed."""
    reference: Callable[[Path], Path]
    """The undisturbed run."""
    run: Callable[[Any, Path], dict[str, Any]]
    """Lives until it is complete; returns what happened."""
    verdict: Callable[[Path, Path], str]
    count: int
    file: str


KINDS = {
    "": Kind(
        storm.draw_case, storm.reference, storm.run_case, verdict, 200, "storm.json"
    ),
    "groups": Kind(
        storm.draw_group_case,
        lambda scratch: storm.reference(scratch, case=storm.draw_group_case(0)),
        storm.run_case, verdict, 50, "group_storm.json",
    ),
    "blockwise": Kind(
        block_storm.draw_case, block_storm.reference, block_storm.run_case, block_storm.verdict,
        50, "blockwise_storm.json",
    ),
    "rings": Kind(
        ring_storm.draw_case, ring_storm.reference, ring_storm.run_case, verdict, 50,
        "ring_storm.json",
    ),
}  # fmt: skip


def main() -> int:
    """Run the cases of a range of seeds; the exit status is 1 when one differs or did not end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, help="200, or 50 of any other kind")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--groups", dest="kind", action="store_const", const="groups", default="",
                       help="runs on groups")  # fmt: skip
    kinds.add_argument("--blockwise", dest="kind", action="store_const", const="blockwise",
                       help="blockwise distillations")  # fmt: skip
    kinds.add_argument("--rings", dest="kind", action="store_const", const="rings",
                       help="stages whose activations go through shared memory")  # fmt: skip
    parser.add_argument("--backward", choices=("whole", "split"), default="whole")
    parser.add_argument("--output", type=Path, help="in artifacts/faults/")
    parser.add_argument("--matching", default="", help="text that a case's name must have")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="results to put first")
    arguments = parser.parse_args()
    kind = KINDS[arguments.kind]
    output = arguments.output or ROOT / "artifacts/faults" / kind.file
    rows = [row for file in arguments.also for row in json.loads(file.read_text())["cases"]]
    with tempfile.TemporaryDirectory(prefix="np") as scratch:
        whole = kind.reference(Path(scratch))
        for seed in range(arguments.first, arguments.first + (arguments.count or kind.count)):
            case = replace(kind.draw(seed), backward=arguments.backward)
            if arguments.matching not in str(case):
                continue
            start, place = time.monotonic(), Path(scratch) / f"seed-{seed}"
            place.mkdir()
            row = {"seed": seed, "case": str(case)}
            try:
                row |= kind.run(case, place)
                row["verdict"] = kind.verdict(whole, place / "run")
            except Exception as error:
                row["verdict"] = f"{type(error).__name__}: {error}"
            row["seconds"] = round(time.monotonic() - start, 1)
            shutil.rmtree(place)
            rows.append(row)
            print(row, flush=True)
            write(output, rows)
    summary = write(output, rows)
    print(summary)
    return int(summary["identical"] < summary["cases"] or summary["hit"] < summary["cases"])


def write(output: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Write what there is by now; returns its summary."""
    output.parent.mkdir(parents=True, exist_ok=True)
    summary = summarise(rows)
    text = ",\n  ".join(map(json.dumps, rows))
    output.write_text(
        f'{{"summary": {json.dumps(summary, indent=1)},\n "cases": [\n  {text}\n ]}}\n'
    )
    return summary


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all cases: verdicts, repeated steps, seconds from each kill to the next loss.

    Of blockwise distillations also how many steps their blocks were apart when the kill came.
    """
    seconds = [each for row in rows for each in row.get("recovery_seconds", [])] or [0]
    repeated = [row.get("repeated_steps", 0) for row in rows] or [0]
    apart = [row["apart"] for row in rows if "apart" in row]
    return {
        "cases": len(rows),
        "hit": sum(row.get("hit", False) for row in rows),
        "identical": sum(row["verdict"] == "IDENTICAL" for row in rows),
        "kills": len(seconds),
        "repeated_steps": {"median": median(repeated), "most": max(repeated)},
        "recovery_seconds": {"median": median(seconds), "most": max(seconds)},
        **({"apart": {"median": median(apart), "most": max(apart)}} if apart else {}),
    }


if __name__ == "__main__":
    sys.exit(main())

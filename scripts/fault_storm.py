"""Seeded kills at every point of a run; each must end, after resumes, with the undisturbed bits.

With --groups the runs are on groups of stages, and every life has others: 4, 2, 1, 3.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.trace.reading.compare import compare_runs  # noqa: E402
from tests.faults.storm import draw_case, draw_group_case, reference, run_case  # noqa: E402


def main() -> int:
    """Run the cases of a range of seeds; the exit status is 1 when one differs or did not end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, help="200, or 50 with --groups")
    parser.add_argument("--groups", action="store_true", help="runs on groups")
    parser.add_argument("--output", type=Path, help="in artifacts/faults/")
    parser.add_argument("--matching", default="", help="text that a case's name must have")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="results to put first")
    arguments = parser.parse_args()
    draw = draw_group_case if arguments.groups else draw_case
    count = arguments.count or (50 if arguments.groups else 200)
    name = "group_storm.json" if arguments.groups else "storm.json"
    output = arguments.output or ROOT / "artifacts/faults" / name
    rows = [row for file in arguments.also for row in json.loads(file.read_text())["cases"]]
    with tempfile.TemporaryDirectory(prefix="np") as scratch:
        whole = reference(Path(scratch), case=draw(0))
        for seed in range(arguments.first, arguments.first + count):
            if arguments.matching not in str(draw(seed)):
                continue
            start, place = time.monotonic(), Path(scratch) / f"seed-{seed}"
            place.mkdir()
            row = {"seed": seed, "case": str(draw(seed))}
            try:
                row |= run_case(draw(seed), place)
                row["verdict"] = str(compare_runs([whole, place / "run"])[0])
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
    """Of all cases: verdicts, repeated steps, seconds from each kill to the next loss."""
    seconds = [each for row in rows for each in row.get("recovery_seconds", [])] or [0]
    repeated = [row.get("repeated_steps", 0) for row in rows] or [0]
    return {
        "cases": len(rows),
        "hit": sum(row.get("hit", False) for row in rows),
        "identical": sum(row["verdict"] == "IDENTICAL" for row in rows),
        "kills": len(seconds),
        "repeated_steps": {"median": median(repeated), "most": max(repeated)},
        "recovery_seconds": {"median": median(seconds), "most": max(seconds)},
    }


if __name__ == "__main__":
    sys.exit(main())

"""Seeded kills at every point of a run; each must end, after resumes, with the undisturbed bits."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.trace.compare import compare_runs  # noqa: E402
from tests.faults.storm import draw_case, reference, run_case  # noqa: E402


def main() -> int:
    """Run the cases of a range of seeds; the exit status is 1 when one differs or did not end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=90)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/faults/storm.json")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="np") as scratch:
        whole = reference(Path(scratch))
        for seed in range(arguments.first, arguments.first + arguments.count):
            start, place = time.monotonic(), Path(scratch) / f"seed-{seed}"
            place.mkdir()
            row = {"seed": seed, "case": str(draw_case(seed))}
            try:
                row |= run_case(draw_case(seed), place)
                row["verdict"] = str(compare_runs([whole, place / "run"])[0])
            except Exception as error:
                row["verdict"] = f"{type(error).__name__}: {error}"
            row["seconds"] = round(time.monotonic() - start, 1)
            rows.append(row)
            print(row, flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["verdict"] != "IDENTICAL" for row in rows))


if __name__ == "__main__":
    sys.exit(main())

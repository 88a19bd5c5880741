"""What a supernet's ranking is worth: inherited scores against networks that were trained alone.

NAS-Bench-201's cell on Fashion-MNIST (docs/searches.md). ``alone`` trains forty different
architectures from their first weights, with two seeds. ``supernets`` trains supernets and judges
the forty with their weights. Parts are done in the order in which they are named.

Each unit is kept in artifacts/ranking/records/ when it is done, and is never done again. What
runs leave in --work may be deleted while nobody is at work. --hours ends the beginning of units;
start again to go on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.rankings.cell_space import DIGITS, Problem  # noqa: E402
from scripts.rankings.kept_units import KeptUnits  # noqa: E402
from scripts.rankings.planned_items import ITEMS, Plan  # noqa: E402
from scripts.rankings.unit_queue import run_items  # noqa: E402

PROBLEMS = {"fashion-mnist": Problem(), "digits": DIGITS}


def main() -> None:
    """Do the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=[*ITEMS])
    parser.add_argument("--problem", choices=[*PROBLEMS], default="fashion-mnist")
    parser.add_argument("--side", type=int, help="pixels of a side: 16 or 28 (16)")
    parser.add_argument("--alone-steps", type=int, default=1500, help="of a network alone")
    parser.add_argument("--alone-seeds", type=int, default=2)
    parser.add_argument("--variants", help="only these supernets, with commas between them")
    parser.add_argument("--lengths", help="only these numbers of passes, with commas between them")
    parser.add_argument("--seeds", help="only these seeds of supernets, with commas between them")
    parser.add_argument("--hours", type=float, default=1000.0, help="nothing begins after these")
    parser.add_argument("--jobs", type=int, default=2, help="units at once, one thread each")
    parser.add_argument("--first", type=int, default=0, help="only so many items of each part")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "ranking")
    parser.add_argument("--records", type=Path, default=ROOT / "artifacts" / "ranking" / "records")
    options = parser.parse_args()
    kept = KeptUnits(options.records)
    plan = Plan(problem=problem_of(options), kept=kept, options=options)
    with kept.alone_at_work():
        items = []
        for part in options.parts:
            found = ITEMS[part](plan)
            items += found[: options.first] if options.first else found
        if not run_items(items, options.jobs, options.hours, plan.seconds_per_pass()):
            sys.exit(1)


def problem_of(options: argparse.Namespace) -> Problem:
    """What is learned."""
    named = PROBLEMS[options.problem]
    said = {**named.as_dict(), **({"side": options.side} if options.side else {})}
    return Problem(**said)


if __name__ == "__main__":
    main()

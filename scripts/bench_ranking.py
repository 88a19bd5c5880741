"""What a supernet's ranking is worth: inherited scores against networks that were trained alone.

NAS-Bench-201's cell on Fashion-MNIST (docs/searches.md). ``alone`` trains forty different
architectures from their first weights, with two seeds. ``proxies`` scores them without training.
``supernets`` trains supernets and judges the forty with their weights. ``found`` searches by
evolution with supernets, and without any by random search and by evolution that trains each
network for a short time, at equal compute; what each finds is trained as the forty are. ``draw``
writes artifacts/ranking/ranking.json and pictures beside it. Parts are done in the order in which
they are named.

Each unit is kept in artifacts/ranking/records/ when it is done, and is never done again. What
runs leave in --work may be deleted while nobody is at work. --hours ends the beginning of units;
start again to go on. --short leaves the supernets that the first answers need: about two hours on
two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.rankings.cell_space import DIGITS, Problem  # noqa: E402
from scripts.rankings.kept_units import KeptUnits  # noqa: E402
from scripts.rankings.planned_items import ITEMS, Plan  # noqa: E402
from scripts.rankings.ranking_figures import (  # noqa: E402
    SCORES,
    SUMS,
    Evidence,
    alone_figures,
    between,
    over_seeds,
    supernet_figures,
)
from scripts.rankings.unit_queue import Item, run_items  # noqa: E402
from scripts.rankings.unit_work import circumstances  # noqa: E402
from scripts.search_common import command  # noqa: E402
from scripts.tiny_workload import prepare_data  # noqa: E402

PROBLEMS = {"fashion-mnist": Problem(), "digits": DIGITS}


def main() -> None:
    """Do the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=[*ITEMS, "draw"])
    parser.add_argument("--problem", choices=[*PROBLEMS], default="fashion-mnist")
    parser.add_argument("--side", type=int, help="pixels of a side: 16 or 28 (16)")
    parser.add_argument("--alone-steps", type=int, default=1500, help="of a network alone")
    parser.add_argument("--alone-seeds", type=int, default=2)
    parser.add_argument("--variants", help="only these supernets, with commas between them")
    parser.add_argument("--lengths", help="only these numbers of passes, with commas between them")
    parser.add_argument("--seeds", help="only these seeds of supernets, with commas between them")
    parser.add_argument("--short", action="store_true", help="only what first answers need")
    parser.add_argument("--hours", type=float, default=1000.0, help="nothing begins after these")
    parser.add_argument("--jobs", type=int, default=2, help="units at once, one thread each")
    parser.add_argument("--first", type=int, default=0, help="only so many items of each part")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "ranking")
    parser.add_argument("--records", type=Path, default=ROOT / "artifacts" / "ranking" / "records")
    options = parser.parse_args()
    kept = KeptUnits(options.records)
    plan = Plan(problem=problem_of(options), kept=kept, options=options)
    if options.parts != ["draw"]:
        work_on(plan)
    if "draw" in options.parts:
        draw(plan)


def work_on(plan: Plan) -> None:
    """All units that are not kept, while there is time."""
    options = plan.options
    prepare_data(plan.problem.data)
    end = time.monotonic() + 3600 * options.hours
    with plan.kept.alone_at_work():
        while items := gathered(plan):
            left = (end - time.monotonic()) / 3600
            if not run_items(items, options.jobs, left, plan.seconds_per_pass()):
                sys.exit(1)
            if options.first or time.monotonic() >= end:
                break


def gathered(plan: Plan) -> list[Item]:
    """What the parts have to do; what a search found is known behind it."""
    found: dict[str, Item] = {}
    for part in (part for part in plan.options.parts if part != "draw"):
        items = ITEMS[part](plan)
        for item in items[: plan.options.first or len(items)]:
            found.setdefault(item.name, item)
    return list(found.values())


def draw(plan: Plan) -> None:
    """Figures and pictures of what is kept, beside the records."""
    from scripts.rankings.found_figures import found_figures
    from scripts.rankings.ranking_pictures import WAY, draw_all

    options = plan.options
    evidence = Evidence(
        problem=plan.problem, kept=plan.kept, steps=options.alone_steps, seeds=options.alone_seeds
    )
    alone, supernets = alone_figures(evidence), supernet_figures(evidence)
    figures = {
        "command": command("scripts/bench_ranking.py"),
        "made": circumstances(),
        "problem": plan.problem.as_dict(),
        "alone": alone,
        "taus": {score: over_seeds(supernets, WAY, score) for score in (*SCORES, *SUMS)},
        "between_supernets": between(supernets, WAY, 10_000),
        "supernets": supernets,
        "found": found_figures(evidence, alone),
    }
    folder = options.records.parent
    path = folder / "ranking.json"
    path.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    print(path, *draw_all(figures, folder))


def problem_of(options: argparse.Namespace) -> Problem:
    """What is learned."""
    named = PROBLEMS[options.problem]
    said = {**named.as_dict(), **({"side": options.side} if options.side else {})}
    return Problem(**said)


if __name__ == "__main__":
    main()

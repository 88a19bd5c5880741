"""Draw definitions and executions at random, run them, and compare every bit with a plain loop.

    scripts/check_compositions.py                   # 200 random cases
    scripts/check_compositions.py --pairs 600       # a covering array of pairs of values
    scripts/check_compositions.py --faults          # deliberate faults, each to be found
    scripts/check_compositions.py --shown           # what README and pages show
    scripts/check_compositions.py --case '{...}'    # one case, as a failure prints it

What is drawn comes from the declarations of the settings (scripts/compositions/cases.py). A case
is good if its bits are those of the plain loop, or if it is refused as a page says. Each other one
is shrunk to the smallest case that fails in the same way, and written as a script below --scripts.
The exit status is 1 if a case is not good, or if a fault is not found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.compositions.broken import FAULTS  # noqa: E402
from scripts.compositions.cases import Case, draw, text_of  # noqa: E402
from scripts.compositions.pairs import array, pairs_of  # noqa: E402
from scripts.compositions.runs import EQUAL, REFUSED, Outcome, check, warm_up  # noqa: E402
from scripts.compositions.shown import check_shown, definitions  # noqa: E402
from scripts.compositions.shrinking import script_of, shrink  # noqa: E402

MOST_DRAWS = 200
"""Within so many cases each deliberate fault has to be found."""


def read_arguments() -> argparse.Namespace:
    """What to check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200, help="random cases (200)")
    parser.add_argument("--pairs", type=int, metavar="ROWS", help="a covering array instead")
    parser.add_argument("--faults", action="store_true", help="deliberate faults instead")
    parser.add_argument("--shown", action="store_true", help="what README and pages show instead")
    parser.add_argument("--case", help="one case, as JSON")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (0)")
    parser.add_argument(
        "--workers", type=int, default=2 * (os.cpu_count() or 1), help="cases at a time"
    )
    parser.add_argument("--scripts", type=Path, help="where scripts of failures are written")
    parser.add_argument("--output", type=Path, help="a JSON file of figures")
    return parser.parse_args()


def drawn(seed: int) -> Iterator[Case]:
    """Random cases without end."""
    random_ = random.Random(seed)
    while True:
        yield draw(random_)


def checked(
    cases: Iterable[Case], workers: int, fault: str | None = None
) -> Iterator[tuple[Case, Outcome]]:
    """Each case with what became of it, in their order."""
    with ProcessPoolExecutor(workers, get_context("fork"), warm_up) as pool:
        batch = 4 * workers
        waiting = iter(cases)
        while part := list(islice(waiting, batch)):
            yield from zip(part, pool.map(partial(_check, fault), part), strict=True)


def _check(fault: str | None, case: Case) -> Outcome:
    return check(case, FAULTS[fault] if fault else None)


def report(number: int, seconds: float, kinds: Counter[str]) -> None:
    """Where it stands, on stderr."""
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"\r{number} cases in {seconds:.0f} s: {told}", end="", file=sys.stderr, flush=True)


def run_cases(cases: Iterable[Case], arguments: argparse.Namespace) -> int:
    """Check cases, shrink what fails, and print what was found."""
    start, kinds, bad = time.monotonic(), Counter[str](), dict[str, tuple[Case, Outcome]]()
    refusals, pairs = Counter[str](), set()
    number = 0
    for number, (case, outcome) in enumerate(checked(cases, arguments.workers), 1):
        kinds[outcome.kind] += 1
        pairs |= pairs_of(case)
        if outcome.kind == REFUSED:
            refusals[outcome.detail] += 1
        if not outcome.is_good:
            print(
                f"\n{outcome.kind}: {outcome.detail[:300]}\n  --case '{text_of(case)}'", flush=True
            )
            first = bad.setdefault(outcome.signature, (case, outcome))
            if len(case) < len(first[0]):
                bad[outcome.signature] = (case, outcome)
        report(number, time.monotonic() - start, kinds)
    print(file=sys.stderr)
    seconds = time.monotonic() - start
    print(f"{number} cases, {len(pairs)} pairs of values, {seconds:.0f} s: {dict(kinds)}")
    for message, count in refusals.most_common():
        print(f"  refused {count} times: {message}")
    warm_up()
    for case, outcome in bad.values():
        show(*shrink(case, outcome, check), arguments.scripts)
    if arguments.output:
        figures = {
            "cases": number, "pairs": len(pairs), "seconds": round(seconds, 1),
            "kinds": dict(kinds), "refusals": dict(refusals),
            "failures": [text_of(case) for case, _ in bad.values()],
        }  # fmt: skip
        arguments.output.write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if bad else 0


def show(case: Case, outcome: Outcome, scripts: Path | None) -> None:
    """Print a failure, and write its script."""
    print(f"\n{outcome.kind}: {outcome.detail[:2000]}\n  --case '{text_of(case)}'")
    if scripts is not None:
        scripts.mkdir(parents=True, exist_ok=True)
        path = scripts / f"case{len(list(scripts.iterdir()))}.py"
        path.write_text(script_of(case, outcome))
        print(f"  {path}")
    else:
        print(script_of(case, outcome))


def find_faults(arguments: argparse.Namespace) -> int:
    """Draw cases until each fault is found; returns 1 if one is not."""
    missed = []
    for name in FAULTS:
        cases = islice(drawn(arguments.seed), MOST_DRAWS)
        found = None
        for number, (case, outcome) in enumerate(checked(cases, arguments.workers, name), 1):
            if outcome.kind not in (EQUAL, REFUSED):
                found = number, case, outcome
                break
        if found is None:
            missed.append(name)
            print(f"{name}: not found in {MOST_DRAWS} cases")
        else:
            number, case, outcome = found
            print(f"{name}: found by case {number}, {outcome.kind}: {outcome.detail[:100]}")
    return 1 if missed else 0


def run_shown() -> int:
    """Train what the pages show, on several executions; returns 1 if any differ or fail."""
    bad = 0
    for row in check_shown(definitions()):
        told = "identical" if row.is_equal else f"NOT EQUAL\n{row.detail}"
        print(f"{' '.join(row.shown.arguments)} ({row.shown.where}), {row.executions}: {told}")
        bad += not row.is_equal
    return 1 if bad else 0


def main() -> int:
    """The exit status."""
    arguments = read_arguments()
    if arguments.case:
        warm_up()
        outcome = check(json.loads(arguments.case))
        print(f"{outcome.kind} {outcome.detail} ({outcome.seconds:.1f} s)")
        return 0 if outcome.is_good else 1
    if arguments.shown:
        return run_shown()
    if arguments.faults:
        return find_faults(arguments)
    if arguments.pairs:
        return run_cases(array(arguments.pairs, arguments.seed), arguments)
    return run_cases(islice(drawn(arguments.seed), arguments.runs), arguments)


if __name__ == "__main__":
    run: Callable[[], int] = main
    raise SystemExit(run())

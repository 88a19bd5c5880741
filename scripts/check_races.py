"""Races between queues of a GPU, host threads and stages, without a GPU: docs/gpus.md, "Races".

Draws 10,000 orders of events over the real parts of a stage, then 500 at most for each mutant,
which lacks one order: once with clocks, once with nothing but the bytes that are found. Writes
artifacts/races/races.json. The exit status is 1 when there is a race, or a mutant was not found.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from rich.console import Console  # noqa: E402

from naspipe.machine.determinism import describe_environment  # noqa: E402
from naspipe.store.files import write_json  # noqa: E402
from tests.happens_before.mutants import MUTANTS, Mutant  # noqa: E402
from tests.happens_before.searching import MUTANT_CASES, Verdict, search  # noqa: E402

_ADDRESSES = re.compile(r" 0x[0-9a-f]+ to 0x[0-9a-f]+")


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/races/races.json")
    return parser.parse_args(arguments)


def finding(verdict: Verdict) -> str:
    """What was found first, the same in every run."""
    return _ADDRESSES.sub("", verdict.finding)


def check_mutants(mutants: Mapping[str, Mutant], console: Console) -> dict[str, Any]:
    """In which case each mutant was found; None where it was not."""
    found: dict[str, Any] = {}
    for name, mutant in mutants.items():
        with mutant():
            verdicts = [search(MUTANT_CASES, watches) for watches in (True, False)]
        cases = [each.cases if each.finding else None for each in verdicts]
        found[name] = {
            "by_clocks_in_case": cases[0],
            "by_bytes_in_case": cases[1],
            "finding": finding(verdicts[0]),
        }
        console.print(f"{name}: by clocks in case {cases[0]}, by bytes alone in {cases[1]}")
    return found


def main(arguments: Sequence[str] | None = None, mutants: Mapping[str, Mutant] = MUTANTS) -> int:
    """Look for races, then for each mutant."""
    options = read_arguments(arguments)
    torch.set_num_threads(1)
    console = Console(highlight=False)
    start = time.monotonic()
    verdict = search(options.cases)
    seconds = time.monotonic() - start
    console.print(f"{verdict.cases} cases in {seconds:.0f} s: {finding(verdict) or 'no race'}")
    found = check_mutants(mutants, console)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.output, {
        "cases": verdict.cases,
        "finding": finding(verdict),
        "seconds": round(seconds, 1),
        "done": dict(sorted(verdict.done.items())),
        "mutants": found,
        "environment": describe_environment(),
    })  # fmt: skip
    is_red = [each["by_clocks_in_case"] is not None for each in found.values()]
    console.print(f"{sum(is_red)} of {len(is_red)} mutants found; {options.output}")
    return int(bool(verdict.finding) or not all(is_red))


if __name__ == "__main__":
    sys.exit(main())

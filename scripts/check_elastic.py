"""Labels from everywhere against the plain loop, bit for bit; writes artifacts/elastic/bits.json.

Each workload of scripts/elastic_workloads.py: labels of the pipeline, inline, of a file and of 1,
2, 3 and 5 teachers, on 1 and 2 stages, and on 2 groups where a step has four passes. Then one of
them while teachers come and go at 50 seeded moments: the run's own ones are killed or told to end,
and another one joins and leaves over the run's registry. Then runs that end early and go on with
other stages and other teachers. Each run is compared to the first, which is compared to the loop.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import naspipe as npp  # noqa: E402
from naspipe.config.errors import RunInterruptedError  # noqa: E402
from naspipe.machine.determinism import describe_environment  # noqa: E402
from naspipe.store.compare import compare_runs  # noqa: E402
from naspipe.store.teacher_events import read_teacher_events  # noqa: E402
from scripts.elastic_moments import QUICK, Moments  # noqa: E402
from scripts.elastic_workloads import CASES, SEED, Case  # noqa: E402
from tests.equivalence.harness import assert_same_bits  # noqa: E402
from tests.faults.helpers import Calm, Ends, interrupt  # noqa: E402

TEACHERS = (1, 2, 3, 5)
PASSES = "accumulate:4"


@dataclass
class Checks:
    """What was found of one workload; each run is compared to the first of its definition."""

    case: Case
    place: Path
    steps: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    first: dict[str, Path] = field(default_factory=dict)
    """The run to compare to, by what the data and the steps are."""

    def labels(self, batches: int) -> str:
        """A file of labels."""
        path = self.place / f"{self.case.name}-labels-{batches}"
        if not path.exists():
            npp.write_labels(self.case.teacher, self.case.data, path, batches=batches, seed=SEED)
        return f"file:{path}"

    def run(self, what: str, passes: str = "one", **how: Any) -> None:
        """Train, compare and note."""
        count = 4 if passes == PASSES else 1
        steps = max(2, self.steps // count)
        if how["labels"] == "file":
            how["labels"] = self.labels(steps * count)
        begin, path = time.monotonic(), self.path()
        run = self.case.train(path, steps, passes, **how)
        self.judge(what, run, passes, begin)

    def path(self) -> Path:
        """Of the next run."""
        return self.place / f"{self.case.name}-{len(self.rows)}"

    def judge(self, what: str, run: npp.Run, passes: str, begin: float, **more: Any) -> None:
        """Compare with the first run of that definition, or that one with the loop."""
        path, key = run.directory.path, f"{passes}/{len(run.losses)}"
        if key in self.first:
            (found,) = compare_runs([self.first[key], path])
            verdict, beside = "IDENTICAL" if found.is_identical else str(found), "first run"
        else:
            self.first[key], beside = path, "plain loop"
            try:
                assert_same_bits(run, self.case.plain_loop(run, 4 if passes == PASSES else 1))
                verdict = "IDENTICAL"
            except AssertionError as error:
                verdict = str(error)
        row = {
            "workload": self.case.name, "what": what, "passes": passes, "beside": beside,
            "subnets": len(run.losses), "seconds": round(time.monotonic() - begin, 1), **more,
            "verdict": verdict,
        }  # fmt: skip
        self.rows.append(row)
        print(row, flush=True)


def sources(teachers: Sequence[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where labels come from."""
    for source in ("pipeline", "inline", "file"):
        yield source, {"labels": source}
    for count in teachers:
        more = {"teacher_inputs": "sent"} if count == 3 else {}
        how = {"labels": "service", "teachers": count, "label_audit": 4, **more}
        yield f"{count} teachers", how


def check_sources(checks: Checks, teachers: Sequence[int], stages: Sequence[int]) -> None:
    """All of them on so many stages, and on groups."""
    for count in stages:
        for name, how in sources(teachers):
            checks.run(f"{name}, {count} stages", stages=count, **how)
    for groups, count in ((1, 2), (2, 1), (2, 2)):
        for name, how in sources(teachers[1:3]):
            checks.run(f"{name}, {groups}x{count}", PASSES, groups=groups, stages=count, **how)


def check_moments(checks: Checks, moments: int, steps: int) -> int:
    """Runs in which teachers come and go, until there were so many moments; how many there were."""
    begin = time.monotonic()
    undisturbed = checks.case.train(checks.path(), steps, labels="inline")
    checks.judge("undisturbed", undisturbed, "one", begin)
    seen = number = 0
    while seen < moments:
        begin, path = time.monotonic(), checks.path()
        with Moments(number, checks.case, path, steps) as happening:
            stages = 1 + number % 2
            how = {**QUICK, **happening.settings, "teachers": 2, "teachers_most": 3}
            run = checks.case.train(path, steps, stages=stages, label_audit=8, **how)
        seen += len(happening.done)
        what = f"moments of seed {number}, {stages} stages"
        more = {"moments": happening.done, "joined": joined(run)}
        checks.judge(what, run, "one", begin, **more)
        number += 1
        if number > moments:
            break
    return seen


def joined(run: npp.Run) -> list[str]:
    """Teachers that passed the admission check, by name; those from elsewhere have their host's."""
    events = read_teacher_events(run.directory.path)
    return sorted({each["teacher"] for each in events if each["event"] == "joined"})


def check_resumes(checks: Checks, steps: int) -> None:
    """Runs that end early with some teachers, and go on with others on other stages."""
    ways = (
        ({"labels": "service", "teachers": 1}, 1, {"labels": "service", "teachers": 3}, 2),
        ({"labels": "service", "teachers": 2}, 2, {"labels": "inline"}, 1),
        ({"labels": "inline"}, 1, {"labels": "service", "teachers": 2}, 3),
    )
    data = Calm(checks.case.data)
    begin = time.monotonic()
    whole = checks.case.train(checks.path(), steps, labels="inline", data=data)
    checks.first = {}  # of other data, as a run says
    checks.judge("undisturbed", whole, "one", begin)
    for number, (first, before, then, behind) in enumerate(ways):
        begin, path = time.monotonic(), checks.path()
        ends = Ends(checks.case.data, steps // 2 + number, interrupt, path.with_suffix(".marker"))
        how = {"window": 4, "labels_ahead": 4, "labels_again": 2}
        with suppress(RunInterruptedError):
            checks.case.train(path, steps, stages=before, data=ends, **how, **first)
        run = checks.case.train(path, steps, stages=behind, data=data, resume=True, **then)
        cut = run.manifest["life"]["first"][0]
        what = f"{before} stages, {first}, then {behind} stages, {then}"
        checks.judge(what, run, "one", begin, resumed_at=cut)


def main(words: Sequence[str] | None = None) -> int:
    """Run every case; the exit status is 1 when a bit differs anywhere."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--teachers", type=int, nargs="+", default=list(TEACHERS))
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--moment-case", choices=CASES, default="mobile")
    parser.add_argument("--moment-steps", type=int, default=60)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/elastic/bits.json")
    arguments = parser.parse_args(words)
    rows: list[dict[str, Any]] = []
    seen = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.cases:
            place = Path(scratch) / name
            place.mkdir()
            checks = Checks(CASES[name](place), place, arguments.steps)
            check_sources(checks, arguments.teachers, arguments.stages)
            rows += checks.rows
        place = Path(scratch) / "moments"
        place.mkdir()
        if arguments.moments:
            checks = Checks(CASES[arguments.moment_case](place), place, arguments.moment_steps)
            seen = check_moments(checks, arguments.moments, arguments.moment_steps)
            check_resumes(checks, arguments.moment_steps // 2)
            rows += checks.rows
    result = {
        "environment": describe_environment(), "runs": len(rows), "moments": seen,
        "identical": sum(row["verdict"] == "IDENTICAL" for row in rows), "rows": rows,
    }  # fmt: skip
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['identical']} of {result['runs']} runs IDENTICAL; {seen} moments")
    return int(result["identical"] != result["runs"] or seen < arguments.moments)


if __name__ == "__main__":
    sys.exit(main())

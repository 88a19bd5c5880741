"""Groups against the plain loop, and against runs of code that knew no groups, bit for bit.

The full product behind tests/equivalence/test_groups.py: 1 to 4 groups of 1 and 2 stages, steps of
4 and 8 passes. Writes artifacts/groups/bits.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import naspipe  # noqa: E402
from naspipe.store.compare import compare_runs  # noqa: E402
from scripts.comparing.versions import Version, Workplace, version_before  # noqa: E402
from scripts.tiny_workload import tiny_workload  # noqa: E402
from tests.equivalence.harness import assert_same_bits, plain_loop  # noqa: E402

SHAPES = [(groups, stages) for stages in (1, 2) for groups in (1, 2, 3, 4)]
SEED = 1
SGD = {"momentum": 0.9, "weight_decay": 1e-4}
ALL = {"clip_global_norm": 1.0, "ema": 0.9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is trained, and how."""

    space: str
    passes: str
    recipe: dict[str, Any] = field(default_factory=dict)
    execution: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "SGD"

    @property
    def lr(self) -> float:
        """Small enough that no loss overflows in so few steps."""
        return 0.01 if self.optimizer == "SGD" else 1e-3


def cases(spaces: list[str], counts: list[int]) -> Iterator[Case]:
    """Dropout, both optimizers, clipping, EMA, a budget, recompute, trees and launches are spread
    over them."""
    for space, count in itertools.product(spaces, counts):
        passes = f"accumulate:{count}"
        if space == "nlp.c3":
            yield Case(space=space, passes=passes, recipe=ALL, optimizer="Adam")
        elif space == "vgg16":
            yield Case(space=space, passes=passes, execution={"memory_budget": "2x"})
            yield Case(space=space, passes=f"subnets:{count}:users", recipe=ALL)
            late = {"reduction_launch": "end"}
            yield Case(space=space, passes=passes, recipe={"reduction": "tree"}, execution=late)
        else:
            for norms in ("ordered", "deferred"):
                more = {"norms": norms, **(ALL if space == "cv.c3" else {})}
                how = {"recompute": space != "cv.c3"}
                yield Case(space=space, passes=passes, recipe=more, execution=how)
        if space in ("nlp.c3", "cv.c3"):
            for average in ("", ":passes", ":users"):
                yield Case(space=space, passes=f"subnets:{count}{average}")
            tree = {"reduction": "tree", "clip_global_norm": 1.0}
            late = {"reduction_launch": "partition"}
            yield Case(space=space, passes=f"subnets:{count}", recipe=tree, execution=late)


def verdict(case: Case, steps: int, backward: str) -> tuple[str, int]:
    """IDENTICAL or the first difference; and how many runs were compared."""
    named, oracle = tiny_workload(case.space), None
    options = SGD if case.optimizer == "SGD" else {}
    for number, (groups, stages) in enumerate(SHAPES):
        with tempfile.TemporaryDirectory() as scratch:
            run = naspipe.train(
                named.space, named.data, named.loss, steps=steps, seed=SEED, stages=stages,
                optimizer=case.optimizer, lr=case.lr, optimizer_options=options,
                run_dir=Path(scratch) / "run", recipe={"passes": case.passes, **case.recipe},
                execution={"groups": groups, "backward": backward, **case.execution},
            )  # fmt: skip
            if oracle is None:
                oracle = plain_loop(
                    named.space, named.data, named.loss, run, seed=SEED, optimizer=case.optimizer,
                    lr=case.lr, options=options, passes=case.passes, **case.recipe,
                )  # fmt: skip
            try:
                assert_same_bits(run, oracle)
            except AssertionError as error:
                return f"{groups}x{stages}: {error}", number
    return "IDENTICAL", len(SHAPES)


def beside_earlier(version: Version, place: Workplace, space: str, passes: str, steps: int) -> str:
    """A run of an earlier version on one stage, and one of today on two groups of two."""
    words = (
        "train", space, "--steps", str(steps), "--seed", str(SEED), "--quiet", "--set",
        f"passes={passes}",
    )  # fmt: skip
    earlier = place.folder / f"{space}-{passes.replace(':', '-')}"
    done = place.naspipe(version, *words, "--stages", "1", "--run-dir", str(earlier))
    if done.status:
        return f"FAILED: {done.said}"
    named = tiny_workload(space)
    recipe = naspipe.config.recipe.Recipe(
        optimizer=named.recipe.optimizer, lr=named.recipe.lr, passes=passes,
        optimizer_options=named.recipe.optimizer_options, schedule=named.recipe.schedule,
    )  # fmt: skip
    ours = named.redefined(recipe=recipe, steps=steps, seed=SEED)
    with tempfile.TemporaryDirectory() as scratch:
        execution = naspipe.Execution(groups=2, stages=2)
        (run,) = naspipe.train_together([ours], execution, Path(scratch) / "run")
        return str(compare_runs([earlier, run.directory.path])[0])


def main() -> int:
    """Run every case; the exit status is 1 when a bit differs anywhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--spaces", nargs="+", default=["vgg16", "resnet50", "cv.c3", "nlp.c3"])
    parser.add_argument("--passes", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--before", metavar="REVISION", help="compare with its runs, too")
    parser.add_argument("--backward", choices=("whole", "split"), default="whole")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/groups/bits.json")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    arguments.output.parent.mkdir(parents=True, exist_ok=True)

    def keep(what: dict[str, Any], found: str, start: float, count: int) -> None:
        seconds = round(time.monotonic() - start, 1)
        rows.append({**what, "runs": count, "seconds": seconds, "verdict": found})
        print(rows[-1], flush=True)
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n")

    for case in cases(arguments.spaces, arguments.passes):
        start = time.monotonic()
        found, count = verdict(case, arguments.steps, arguments.backward)
        what = {"space": case.space, "passes": case.passes, "optimizer": case.optimizer}
        what["backward"] = arguments.backward
        keep({**what, **case.recipe, **case.execution}, found, start, count)
    if arguments.before:
        with tempfile.TemporaryDirectory() as scratch:
            place = Workplace(Path(scratch))
            with version_before(arguments.before, Path(scratch)) as version:
                for space, count in itertools.product(("cv.c3", "nlp.c3"), arguments.passes):
                    start, passes = time.monotonic(), f"accumulate:{count}"
                    said = beside_earlier(version, place, space, passes, arguments.steps)
                    what = {"space": space, "passes": passes, "before": version.revision}
                    keep(what, said, start, 1)
    return int(any("IDENTICAL" not in row["verdict"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())

"""Bits under memory budgets, on the emulated device, against the plain loop.

Of the product of spaces, stages, budgets, recompute, partitions and optimizers (288 runs), a
subset in which every pair of values of two factors appears; --all takes the whole. 100 steps
each; writes artifacts/memory/bits.json after every run and keeps the rows that are there. A second
start skips what was run already with the same source, so it can be stopped at any time.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn  # noqa: E402

import naspipe  # noqa: E402
from naspipe.config.errors import NaspipeError, RunInterruptedError, reason  # noqa: E402
from naspipe.machine.determinism import describe_environment  # noqa: E402
from naspipe.store.files import write_json  # noqa: E402
from naspipe.streams.samplers import draw_stream  # noqa: E402
from scripts.tiny_workload import tiny_workload  # noqa: E402
from tests.equivalence.first_difference import first_difference, recorded  # noqa: E402
from tests.equivalence.harness import oracle_of  # noqa: E402

OPTIMIZERS = {"SGD": (0.05, {"momentum": 0.9, "weight_decay": 1e-4}), "Adam": (1e-3, {})}
BUDGETS = {"least": "0.001x", "1": "1x", "1.5": "1.5x", "2": "2x", "3": "3x", "10": "10x"}
"""By their names here; what is below the least budget is raised to it."""

BATCHES = {"nlp.c2": {"max_tokens": 240}, "cv.c2": {"batch_size": 4}}
"""Smaller than tiny's own, so that the product takes an hour and not four."""

BANDWIDTH_BYTES_PER_SECOND = 1e9
"""Slow enough that copies last into the compute."""

SEED = 1


class Case(NamedTuple):
    """One run; the factors in the order of the product."""

    space: str
    optimizer: str
    stages: int
    budget: str
    recompute: bool
    partition: str


def covering(cases: Sequence[Case]) -> list[Case]:
    """Few of the cases, in which every pair of values of two factors appears that does in all.

    Greedy: the case with most new pairs first, the earlier of two.
    """

    def pairs(case: Case) -> set[Any]:
        return set(itertools.combinations(enumerate(case), 2))

    missing = set().union(*map(pairs, cases))
    chosen: list[Case] = []
    while missing:
        best = max(cases, key=lambda case: len(pairs(case) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return [case for case in cases if case in chosen]


def source_digest() -> str:
    """Of everything that the bits may depend on: the package, the spaces and the oracle."""
    paths = [*(ROOT / "naspipe").rglob("*.py"), *(ROOT / "search_spaces").rglob("*.py")]
    paths += [ROOT / "tests/oracle.py", Path(__file__)]
    digest = hashlib.blake2b(torch.__version__.encode(), digest_size=8)
    for path in sorted(paths):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


class Results:
    """The rows so far, in a file that is whole after every one of them."""

    def __init__(self, path: Path, steps: int, backward: str) -> None:
        self._path, self._steps = path, steps
        self._source = f"{source_digest()}, {backward} backwards"
        path.parent.mkdir(parents=True, exist_ok=True)
        old = json.loads(path.read_text())["runs"] if path.exists() else []
        self._rows = {self._key(row): row for row in old}

    def _key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return (*(row[factor] for factor in Case._fields), row["steps"])

    def of(self, case: Case) -> dict[str, Any] | None:
        """The row of a case, if it was run to its end with the source as it is now."""
        row = self._rows.get((*case, self._steps))
        is_done = row and row["source"] == self._source and not row["verdict"].startswith("FAILED")
        return row if is_done else None

    def add(self, case: Case, **found: Any) -> None:
        """Keep a row, in place of an older one of the case."""
        row = {**case._asdict(), "steps": self._steps, "source": self._source, **found}
        self._rows[self._key(row)] = row
        rows = sorted(self._rows.values(), key=lambda row: list(map(str, self._key(row))))
        environment = describe_environment()
        write_json(self._path, {"environment": environment, "batches": BATCHES, "runs": rows})


class Bench:
    """One space and optimizer: its data, and the plain loop's result, trained when first needed."""

    def __init__(self, name: str, optimizer: str, steps: int, backward: str) -> None:
        named = tiny_workload(name, BATCHES[name])
        self._space, self._data, self._loss = named.space, named.data, named.loss
        self._optimizer, self._steps, self._backward = optimizer, steps, backward
        self._lr, self._options = OPTIMIZERS[optimizer]
        self._expected = self._plain_loop()

    def _plain_loop(self) -> Any:
        oracle = oracle_of(self._space, SEED, self._optimizer, self._lr, self._options)
        stream = draw_stream("uniform", self._space.candidate_counts, SEED, self._steps)
        torch.use_deterministic_algorithms(True)
        for y, choices in enumerate(stream):
            oracle.step(y, self._space.chain(choices), self._data(SEED, y), self._loss)
        torch.use_deterministic_algorithms(False)
        return recorded(oracle, self._space, stream)

    def run(self, case: Case) -> dict[str, Any]:
        """Train, compare, and say what was measured."""
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="npm") as scratch:
            try:
                run = naspipe.train(
                    self._space, self._data, self._loss, steps=self._steps, seed=SEED,
                    optimizer=self._optimizer, lr=self._lr, optimizer_options=self._options,
                    stages=case.stages, run_dir=Path(scratch) / "run",
                    execution={
                        "memory_budget": BUDGETS[case.budget], "recompute": case.recompute,
                        "partition": case.partition, "bandwidth": BANDWIDTH_BYTES_PER_SECOND,
                        "backward": self._backward,
                    },
                )  # fmt: skip
                verdict = str(first_difference(self._expected, run.directory.path))
            except RunInterruptedError as error:
                sys.exit(128 + error.signal_number)  # ends this script too; the row is not there
            except NaspipeError as error:
                return {"verdict": f"FAILED: {reason(error)}"}
            manifest = run.manifest
        stages = manifest["measured"]["stages"]
        return {
            "verdict": verdict,
            "budgets_bytes": manifest["execution"]["budgets"],
            "peak_bytes": [int(stage["device_peak_bytes"]) for stage in stages],
            "loaded_bytes": sum(int(stage["load_bytes"]) for stage in stages),
            "pushed_bytes": sum(int(stage["pushed_bytes"]) for stage in stages),
            "hit_rate": round(manifest["measured"]["hit_rate"], 4),
            "seconds": round(time.monotonic() - start, 1),
        }


def read_arguments() -> argparse.Namespace:
    """What to run."""
    parser = argparse.ArgumentParser(description=__doc__)
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument("--quick", action="store_true", help="every pair: what is done anyway")
    how_many.add_argument("--all", action="store_true", help="the whole product, not every pair")
    parser.add_argument("--spaces", nargs="+", choices=BATCHES, default=[*BATCHES])
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=[*OPTIMIZERS])
    parser.add_argument("--stages", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--budgets", nargs="+", choices=BUDGETS, default=[*BUDGETS])
    parser.add_argument("--partitions", nargs="+", default=["balanced", "static"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--backward", choices=("whole", "split"), default="whole")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/memory/bits.json")
    return parser.parse_args()


def check(
    results: Results, todo: Iterable[Case], steps: int, backward: str, progress: Progress
) -> None:
    """Run the cases that are left; those of one plain loop after another."""
    rows = list(todo)
    task = progress.add_task("runs", total=len(rows))
    for (name, optimizer), group in itertools.groupby(rows, key=lambda case: case[:2]):
        bench = Bench(name, optimizer, steps, backward)
        for case in group:
            found = bench.run(case)
            results.add(case, **found)
            progress.console.print(f"{' '.join(map(str, case)):44} {found['verdict']}")
            progress.advance(task)


def main() -> int:
    """Run what is missing; the exit status is 1 when a bit differs in any case asked for."""
    arguments = read_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no temporary directory
    torch.set_num_threads(1)
    factors = (
        arguments.spaces, arguments.optimizers, arguments.stages, arguments.budgets,
        (False, True), arguments.partitions,
    )  # fmt: skip
    cases = [Case(*values) for values in itertools.product(*factors)]
    cases = cases if arguments.all else covering(cases)
    results = Results(arguments.output, arguments.steps, arguments.backward)
    todo = [case for case in cases if results.of(case) is None]
    console = Console(highlight=False)
    console.print(f"{len(cases)} runs, {len(cases) - len(todo)} of them there already")
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        check(results, todo, arguments.steps, arguments.backward, progress)
    verdicts = {case: (results.of(case) or {"verdict": "FAILED"})["verdict"] for case in cases}
    wrong = [case for case, verdict in verdicts.items() if verdict != "IDENTICAL"]
    console.print(f"{len(cases) - len(wrong)} of {len(cases)} runs have the plain loop's bits")
    for case in wrong:
        console.print(f"{' '.join(map(str, case))}: {verdicts[case]}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

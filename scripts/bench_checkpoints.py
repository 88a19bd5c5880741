"""What a checkpoint every 100 steps costs, in time and in CPU time: runs with and without, in turn.

Runs differ by more than a checkpoint costs. So each is also compared with itself: the steps behind
each place of a checkpoint with as many later ones. In runs without any that says how far chance
goes. And what copying and writing take of the stages' processor time is measured by itself, for
each checkpoint.

Writes artifacts/faults/checkpoint_cost.json. Run it with a high priority on a busy machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import naspipe  # noqa: E402
from naspipe.jobs.workload import Workload  # noqa: E402
from naspipe.wire.reports import Observer  # noqa: E402
from naspipe.worker.checkpoints.checkpointer import (  # noqa: E402
    Checkpointer,
    Part,
)
from scripts.tiny_workload import tiny_workload  # noqa: E402

WARM_UP = 20
OWN = ("first", "later")
BEHIND = 0.4
"""Of the steps from one checkpoint to the next, those that it may slow down."""


class Clock(Observer):
    """Notes when each loss came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        """See :class:`naspipe.wire.ports.LaunchObserver`."""
        self.times.append(time.monotonic())


class Measured(NamedTuple):
    """One run: steps per second behind the warm-up, and CPU seconds of all of it."""

    speed: float
    cpu: float
    slowed: list[float]
    """For each place of a checkpoint: what was lost there, of the time from one to the next."""
    own: list[float]
    """CPU seconds of each checkpoint, of all stages: to copy and to write."""


@contextmanager
def watched(place: Path) -> Iterator[None]:
    """Have stages that begin meanwhile write what each checkpoint takes of them, in CPU seconds.

    A line for each to ``place``; what is copied for the next one before its line counts with it.
    """
    spent = [0.0]

    def timed(function: Callable[..., Any], is_last: bool = False) -> Callable[..., Any]:
        @wraps(function)
        def inner(*given: Any) -> Any:
            begin = time.thread_time()
            try:
                return function(*given)
            finally:
                spent[0] += time.thread_time() - begin
                if is_last:
                    with (place / str(os.getpid())).open("a") as file:
                        file.write(f"{spent[0]}\n")
                    spent[0] = 0.0

        return inner

    with (
        patch.object(Checkpointer, "carry_out", timed(Checkpointer.carry_out)),
        patch.object(Part, "write", timed(Part.write)),
        patch.object(Checkpointer, "_finish", timed(Checkpointer._finish, is_last=True)),
    ):
        yield


def slowed(times: Sequence[float], every: int) -> list[float]:
    """For each place: the steps behind it took so much longer than as many later ones.

    As a share of the time from one place to the next. Places without enough steps behind are left
    out. ``times``: of each loss, in seconds.
    """
    behind = round(BEHIND * every)
    found = []
    for place in range(every, len(times) - 2 * behind, every):
        begin, middle, end = (times[place - 2 + steps] for steps in (0, behind, 2 * behind))
        late = (end - middle) / behind
        lost = (middle - begin) - behind * late
        found.append(lost / (lost + every * late))
    return found


def measure(named: Workload, arguments: argparse.Namespace, sampler: str, every: int) -> Measured:
    """Train with a checkpoint every so many steps; 0 for none."""
    clock = Clock()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as scratch, watched(Path(scratch)):
        naspipe.train(
            named.space, named.data, named.loss, steps=arguments.steps, stages=arguments.stages,
            sampler=sampler, optimizer=named.recipe.optimizer, lr=named.recipe.lr,
            run_dir=Path(scratch) / "run", observer=clock,
            optimizer_options=dict(named.recipe.optimizer_options),
            execution={"checkpoint_every": every},
        )  # fmt: skip
        stages = [each.read_text().split() for each in Path(scratch).iterdir() if each.is_file()]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = clock.times[-1] - clock.times[WARM_UP]
    speed = (len(clock.times) - 1 - WARM_UP) / seconds
    own = [sum(map(float, parts)) for parts in zip(*stages, strict=True)]
    return Measured(speed, cpu, slowed(clock.times, arguments.every), own)


def own_cost(found: Measured, times: float) -> dict[str, float]:
    """The first checkpoint's share of the CPU time from one to the next, and that of later ones.

    ``times``: how often the run is as long as from one to the next.
    """
    rest = found.cpu - sum(found.own)
    return {
        name: own / (own + rest / times)
        for name, own in zip(OWN, (found.own[0], median(found.own[1:])), strict=True)
    }


def main() -> int:
    """Measure; the exit status is 1 when the median costs more than 3 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--space", default="nlp.c1")
    parser.add_argument("--steps", type=int, default=420)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--samplers", nargs="+", default=["uniform", "spaced:8"])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument(
        "--output", type=Path, default=ROOT / "artifacts/faults/checkpoint_cost.json"
    )
    arguments = parser.parse_args()
    named = tiny_workload(arguments.space)
    pairs: dict[str, list[dict[str, Any]]] = {sampler: [] for sampler in arguments.samplers}
    for number, sampler in itertools.product(range(arguments.pairs), arguments.samplers):
        whens = ((0, arguments.every), (arguments.every, 0))[number % 2]
        found = {every: measure(named, arguments, sampler, every) for every in whens}
        without, with_them = found[0], found[arguments.every]
        pair = {"without": without._asdict(), "with": with_them._asdict()}
        pair |= {"cost": 1 - with_them.speed / without.speed}
        pair |= {"cpu_cost": with_them.cpu / without.cpu - 1}
        pair |= {"own_cost": own_cost(with_them, arguments.steps / arguments.every)}
        pairs[sampler].append(pair)
        print(sampler, pair, flush=True)
    how = {name: getattr(arguments, name) for name in ("space", "steps", "stages", "every")}
    results = {
        sampler: {
            "median_cost": median(each["cost"] for each in found),
            "median_cpu_cost": median(each["cpu_cost"] for each in found),
            "median_own_cost": {
                name: median(each["own_cost"][name] for each in found) for name in OWN
            },
            "within_a_run": {
                kind: median(lost for each in found for lost in each[kind]["slowed"])
                for kind in ("with", "without")
            },
            "pairs": found,
        }
        for sampler, found in pairs.items()
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({**how, "samplers": results}, indent=1) + "\n")
    return int(any(each["median_cost"] > 0.03 for each in results.values()))


if __name__ == "__main__":
    sys.exit(main())

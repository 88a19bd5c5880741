"""Where the time of a step goes beside the modules: one stage, in this process, part by part.

    scripts/bench step_costs nlp.c1 --steps 60
    scripts/bench step_costs nlp.c2 --set memory_budget=1.5x

A part's time is what it takes itself, without the parts that it calls. Beside it stands the plain
loop on the same subnets, whose forward, backward and optimizers are the same calls of torch.
Looking costs a microsecond or two a call. Writes artifacts/step_costs/SPACE.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from naspipe.api.training import Training
from naspipe.config.definition import Settings, apply_settings
from naspipe.engine import controller
from naspipe.jobs.workload import Workload
from naspipe.machine.determinism import (
    describe_environment,
    deterministic_torch,
)
from naspipe.store.files import write_json
from naspipe.streams.samplers import draw_stream
from naspipe.wire.reports import Observer
from naspipe.worker import driver, placement, stage_files
from naspipe.worker.blocks import compute, pass_state, segment, split_backward
from naspipe.worker.checkpoints import checkpointer
from naspipe.worker.layers import joint_steps, layer_store, stored_layer
from scripts.bench.common import ROOT
from scripts.tiny_workload import workload_with_data
from tests.equivalence.harness import oracle_of

FORWARD, BACKWARD, OPTIMIZERS, DATA = "modules, forward", "autograd", "optimizers", "batches"
MOVES = ("adopt", "load", "save", "settle", "take_finished")
PARTS: tuple[tuple[str, object, tuple[str, ...]], ...] = (
    (FORWARD, segment.Segment, ("_found",)),
    (BACKWARD, segment, ("backward_from",)),
    (BACKWARD, split_backward, ("backward_from",)),
    (BACKWARD, split_backward._Piece, ("by_kernel",)),
    (OPTIMIZERS, stored_layer, ("take_step",)),
    (OPTIMIZERS, joint_steps.JointSteps, ("take",)),
    (DATA, pass_state.PassState, ("made_batch",)),
    ("blocks, around modules", compute.StageCompute, ("run_block",)),
    ("WRITEs, around optimizers", driver.StageDriver, ("_write",)),
    ("decisions", controller.StageController, ("handle",)),
    ("layers made", layer_store.LayerStore, ("make",)),
    ("layers moved", placement.SwappedPlacement, MOVES),
    ("layers moved", compute.StageCompute, ("evict",)),
    ("records and reports", stage_files.StageFiles, ("access", "result", "event")),
    ("checkpoints", checkpointer.Checkpointer, ("carry_out", "report", "drain")),
)  # fmt: skip
LOOP = "the stage's loop"
PLAIN, PIPED = "plain loop", "naspipe"


class Clock:
    """Seconds of each part without those that it calls; for one thread."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = 0.0

    def timed(
        self, part: str, function: Callable[..., Any], begins: bool = False
    ) -> Callable[..., Any]:
        """The same function, whose time is counted; within another's, unless it ``begins``."""

        @wraps(function)
        def inner(*given: Any, **named: Any) -> Any:
            if not (self._open or begins):
                return function(*given, **named)
            self._turn()
            self._open.append(part)
            self.calls[part] += 1
            try:
                return function(*given, **named)
            finally:
                self._turn()
                self._open.pop()

        return inner

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


def plain(named: Workload, clock: Clock) -> None:
    """The loop without naspipe."""
    recipe, definition = named.recipe, named.definition
    oracle = oracle_of(
        named.space, definition.seed, recipe.optimizer, recipe.lr, recipe.optimizer_options
    )
    counts = named.space.candidate_counts
    stream = draw_stream(definition.sampler, counts, definition.seed, definition.steps)
    step, data = (
        clock.timed(part, function, begins=True)
        for part, function in ((FORWARD, oracle.step), (DATA, named.data))
    )
    with patch.object(torch.Tensor, "backward", clock.timed(BACKWARD, torch.Tensor.backward)):
        kind = getattr(torch.optim, recipe.optimizer)
        with patch.object(kind, "step", clock.timed(OPTIMIZERS, kind.step)):
            for y, choices in enumerate(stream):
                batch = data(definition.seed, y)
                step(y, named.space.chain(choices), batch, named.loss)


def piped(named: Workload, settings: Sequence[str], clock: Clock) -> None:
    """naspipe on one stage, in this process."""
    execution = apply_settings(Settings(), settings).execution
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        run = clock.timed(LOOP, driver.StageDriver.run, begins=True)
        stack.enter_context(patch.object(driver.StageDriver, "run", run))
        for part, owner, names in PARTS:
            for name in names:
                timed = clock.timed(part, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, timed))
        path = Path(scratch) / "run"
        Training(workloads=[named], execution=execution, path=path, observer=Observer()).run()


def measure(kind: str, named: Workload, settings: Sequence[str]) -> dict[str, Any]:
    """Milliseconds and calls of a step, part by part."""
    clock = Clock()
    with deterministic_torch(1):
        if kind == PLAIN:
            plain(named, clock)
        else:
            piped(named, settings, clock)
    steps = named.definition.steps
    return {
        part: {"ms": 1000 * seconds / steps, "calls": clock.calls[part] / steps}
        for part, seconds in clock.seconds.items()
    }


def table_of(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row for each part, the dearest first."""
    ours, theirs = found[PIPED], found[PLAIN]
    total = sum(each["ms"] for each in ours.values())
    table = Table("part of a step", "ms", "share", "calls", "plain loop, ms", box=SIMPLE_HEAD)
    for part, each in sorted(ours.items(), key=lambda item: -item[1]["ms"]):
        beside = f"{theirs[part]['ms']:.2f}" if part in theirs else ""
        share = f"{each['ms'] / total:.1%}"
        table.add_row(part, f"{each['ms']:.2f}", share, f"{each['calls']:.0f}", beside)
    plain_total = sum(each["ms"] for each in theirs.values())
    table.add_row("together", f"{total:.2f}", "", "", f"{plain_total:.2f}")
    return table


def main(words: Sequence[str] | None = None) -> int:
    """Measure both in this process, one after the other; print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("space", help="one of naspipe's, or module:attribute")
    parser.add_argument("--scale", default="tiny")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--sampler", default="uniform")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--output", type=Path, help="default: artifacts/step_costs/SPACE.json")
    options = parser.parse_args(words)
    named = workload_with_data(options.space, options.scale)
    named = named.redefined(steps=options.steps, sampler=options.sampler)
    found = {kind: measure(kind, named, options.settings) for kind in (PLAIN, PIPED)}
    Console(highlight=False).print(table_of(found))
    output = options.output or ROOT / f"artifacts/step_costs/{options.space}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    given = {"space": options.space, "steps": options.steps, "settings": options.settings}
    write_json(output, {**given, "environment": describe_environment(), "parts": found})

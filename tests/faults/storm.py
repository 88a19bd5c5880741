"""Seeded kills: where, who and when follow from a seed; every run must end with the same bits."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import naspipe
from naspipe.core.partition import Partition
from naspipe.core.task import TaskKind
from naspipe.runtime.checkpointer import Checkpointer
from naspipe.runtime.compute import StageCompute
from naspipe.runtime.publishing import Publisher
from naspipe.runtime.restored import Restored
from naspipe.runtime.transport import ZmqTransport
from naspipe.sim import plan
from naspipe.trace import checkpoints
from tests.equivalence import spaces
from tests.faults.helpers import Calm, train

_FORK = multiprocessing.get_context("fork")
LIFE_SECONDS = 120.0

POINTS = (
    "forward",
    "backward",
    "write",
    "send",
    "capture",
    "shard",
    "publish",
    "rename",
    "recovery",
)
"""Where a process is killed; ``recovery`` is a second kill, when the resume restores a layer."""

MODES = {
    "plain": {},
    "swapped": {"memory_budget": "1x"},
    "mirrored": {},
    "recompute": {"recompute": True},
}


@dataclass(frozen=True)
class Case:
    """One fault: named by what it does, so that a failure can be run again."""

    point: str
    victim: str
    """``stage`` (whichever comes to the point first), or ``launcher``."""
    stages: int
    mode: str
    call: int
    """Which call of the point it is."""

    def __str__(self) -> str:
        return f"{self.victim} at {self.point} {self.call}, {self.stages} stages, {self.mode}"


def draw_case(seed: int) -> Case:
    draw = random.Random(seed)
    point = POINTS[seed % len(POINTS)]
    victim = "launcher" if point in ("publish", "rename") else draw.choice(("stage", "launcher"))
    most = {"publish": 4, "rename": 2, "shard": 3, "recovery": 6, "capture": 30}.get(point, 60)
    stages = draw.choice((2, 4))
    return Case(point, victim, stages, draw.choice(list(MODES)), draw.randint(1, most))


class Killer:
    """Kills at the given call of a point, once for all lives: the marker says that it has."""

    def __init__(self, case: Case, marker: Path) -> None:
        self.case, self.marker, self.left = case, marker, case.call
        self.launcher = os.getpid()

    def __call__(self) -> None:
        self.left -= 1
        if self.left > 0:
            return
        with contextlib.suppress(FileExistsError):
            self.marker.touch(exist_ok=False)
            at_launcher = self.case.victim == "launcher"
            os.kill(self.launcher if at_launcher else os.getpid(), signal.SIGKILL)
            time.sleep(30)  # the launcher's death ends this process, too


def before(owner, name, killer, when=lambda *args: True):
    """Let the killer look before each call of a method."""
    method = getattr(owner, name)

    def call(self, *args, **kw):
        if when(*args):
            killer()
        return method(self, *args, **kw)

    setattr(owner, name, call)


def inject(case: Case, killer: Killer) -> None:
    """Patch this process, and so the stages it forks."""
    match case.point:
        case "forward" | "backward":
            kind = TaskKind.FORWARD if case.point == "forward" else TaskKind.BACKWARD
            before(StageCompute, "run_block", killer, lambda task, *rest: task.kind is kind)
        case "write":
            before(StageCompute, "write", killer)
        case "send":
            before(ZmqTransport, "send_input", killer)
        case "capture":
            before(Checkpointer, "capture", killer)
        case "shard":
            before(Checkpointer, "_write", killer)
        case "publish":
            before(Publisher, "take", killer)
        case "rename":
            rename = checkpoints.write_checkpoint_manifest

            def write_and_kill(directory, manifest):
                rename(directory, manifest)
                killer()

            checkpoints.write_checkpoint_manifest = write_and_kill
        case "recovery":
            before(Restored, "restore", killer)


def restless(kind, subnets, is_shared, costs, num_stages):
    """Every subnet is cut somewhere else, so that layers move a lot."""
    draw = random.Random(num_stages)
    inner = range(1, len(is_shared))
    return lambda subnet: Partition(
        (0, *sorted(draw.sample(inner, num_stages - 1)), len(is_shared))
    )


def live(case: Case, path: Path, marker: Path, resume: bool, steps: int) -> None:
    """One life of the run, in a process of its own; ends with status 0 when it is complete."""
    if case.mode == "mirrored":
        plan.Partitioner = restless
    if case.point != "recovery" or resume:
        inject(case, Killer(case, marker))
    elif not marker.with_suffix(".first").exists():
        first = Case("write", case.victim, case.stages, case.mode, 40)
        inject(first, Killer(first, marker.with_suffix(".first")))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        train(
            path, Calm(spaces.vectors), steps=steps, stages=case.stages, resume=resume,
            execution={"checkpoint_every": 4, **MODES[case.mode]},
        )  # fmt: skip
    except naspipe.NaspipeError:
        os._exit(1)
    os._exit(0)


def run_case(case: Case, scratch: Path, steps: int = 24) -> dict:
    """Live until the run is complete; returns what happened."""
    path, marker = scratch / "run", scratch / "marker"
    ends = []
    while not ends or ends[-1] != 0:
        assert len(ends) < 4, f"{case}: ended with {ends}"
        resume = (path / "manifest.json").exists()
        process = _FORK.Process(target=live, args=(case, path, marker, resume, steps))
        process.start()
        process.join(LIFE_SECONDS)
        assert process.exitcode is not None, f"{case}: a life did not end"
        ends.append(process.exitcode)
        process.close()
    return {"case": str(case), "ends": ends, "hit": marker.exists()}


def reference(scratch: Path, steps: int = 24) -> Path:
    """The undisturbed run."""
    return train(scratch / "whole", Calm(spaces.vectors), steps=steps).directory.path

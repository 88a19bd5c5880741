"""Seeded kills: where, who and when follow from a seed; every run must end with the same bits."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import naspipe
from naspipe.config.partition import Partition
from naspipe.engine.events import TaskKind
from naspipe.launch.claim import Publisher
from naspipe.plan.partitions import PLACEMENTS
from naspipe.store import checkpoints
from naspipe.wire.messages import InputMessage
from naspipe.wire.reports import Observer
from naspipe.wire.transport import ZmqTransport
from naspipe.worker.blocks.compute import StageCompute
from naspipe.worker.blocks.updates import StageUpdates
from naspipe.worker.checkpoints.checkpointer import Checkpointer
from naspipe.worker.checkpoints.restored import Restored
from naspipe.worker.layers import layer_store
from naspipe.worker.layers.stored_layer import StoredLayer
from tests.equivalence import spaces
from tests.faults.helpers import Calm, train
from tests.faults.ring_points import RING_POINTS, before

_FORK = multiprocessing.get_context("fork")
LIFE_SECONDS = 400.0

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

GROUP_POINTS = ("send", "sum", "join", "write", "copy", "capture")
"""Of runs on groups: also where sums and copies leave, and where sums are added to."""

GROUPS = (4, 2, 1, 3)
"""Of one life after the other, from any of them on."""

PASSES = 4

MODES = {
    "plain": {},
    "swapped": {"memory_budget": "1x"},
    "mirrored": {},
    "swapped and mirrored": {"memory_budget": "1x"},
    "recompute": {"recompute": True},
}

CALLS = {"publish": 4, "rename": 2, "shard": 3, "recovery": 1, "capture": 5}
"""The last call of a point that every stage comes to; of the other points, 20."""

RESTARTS = 3


@dataclass(frozen=True)
class Case:
    """One fault: named by what it does, so that a failure can be run again."""

    point: str
    victim: str
    """``stage N``, or ``launcher`` (when whichever stage comes to the point first does)."""
    stages: int
    mode: str
    call: int
    """Which call of the point it is."""
    restarts: bool = False
    """Whether the launcher goes on by itself, instead of a new one that resumes."""
    groups: tuple[int, ...] = ()
    """Of each life; none for steps of one pass."""
    rows: int = 12
    """Of a batch; 1024 of them make activations that go through shared memory."""
    backward: str = "whole"

    def __str__(self) -> str:
        how = "restarts by itself" if self.restarts else "is resumed"
        groups = f"groups {'-'.join(map(str, self.groups))} of " if self.groups else ""
        where = f"{groups}{self.stages} stages"
        split = "" if self.backward == "whole" else f", {self.backward} backwards"
        return f"{self.victim} at {self.point} {self.call}, {where}, {self.mode}{split}, {how}"


def draw_case(seed: int) -> Case:
    draw = random.Random(seed)
    point = POINTS[seed % len(POINTS)]
    stages = draw.choice((2, 4))
    is_launchers = point in ("publish", "rename")
    victims = ["launcher", *([] if is_launchers else [f"stage {n}" for n in range(stages)])]
    victim, mode = draw.choice(victims), draw.choice(list(MODES))
    call = draw.randint(1, CALLS.get(point, 20))
    return Case(point, victim, stages, mode, call, victim != "launcher" and draw.random() < 0.5)


def draw_group_case(seed: int) -> Case:
    """The same for a run on groups; each further life has others."""
    draw = random.Random(seed)
    point, stages = GROUP_POINTS[seed % len(GROUP_POINTS)], draw.choice((1, 2))
    stages = 2 if point == "send" else stages  # a group of one stage has nobody to send to
    first = draw.choice([n for n in range(len(GROUPS)) if GROUPS[n] > 1])
    groups = (*GROUPS[first:], *GROUPS[:first])
    # The last group adds up for nobody, and has no copies; the others write nothing but sums.
    last = stages * (groups[0] - 1)
    senders, owners = range(last), range(last, last + stages)
    which = {"sum": senders, "join": owners, "copy": owners, "capture": owners}
    victim = f"stage {draw.choice(which.get(point, range(last + stages)))}"
    restarts, call = draw.random() < 0.3, draw.randint(1, CALLS.get(point, 20))
    return Case(point, victim, stages, draw.choice(list(MODES)), call, restarts, groups)


class Killer:
    """Kills at the given call of a point, once for all lives: the marker says that it has."""

    def __init__(self, case: Case, marker: Path) -> None:
        self.case, self.marker, self.left = case, marker, case.call
        self.launcher = os.getpid()

    def __call__(self) -> None:
        number = self.case.victim.partition("stage ")[2]
        if number and multiprocessing.current_process().name != f"naspipe-stage-{number}":
            return
        self.left -= 1
        if self.left > 0:
            return
        with contextlib.suppress(FileExistsError):
            self.marker.touch(exist_ok=False)
            self.strike()

    def strike(self) -> None:
        at_launcher = self.case.victim == "launcher"
        os.kill(self.launcher if at_launcher else os.getpid(), signal.SIGKILL)
        time.sleep(30)  # the launcher's death ends this process, too


def inject(case: Case, killer: Killer) -> None:
    """Patch this process, and so the stages it forks."""
    match case.point:
        case "forward" | "backward":
            kind = TaskKind.FORWARD if case.point == "forward" else TaskKind.BACKWARD
            before(StageCompute, "run_block", killer, lambda task, *rest: task.kind is kind)
        case "write":
            before(StageUpdates, "_write", killer)
        case "send":
            before(
                ZmqTransport,
                "send",
                killer,
                lambda stage, message: isinstance(message, InputMessage),
            )
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
        case "sum":
            before(StageUpdates, "give_sum", killer)
        case "join":
            before(StageUpdates, "join", killer)
        case "copy":
            before(StoredLayer, "copied", killer)
        case _:
            RING_POINTS[case.point](killer)


def restless(subnets, is_shared, costs, num_stages):
    """Every subnet is cut somewhere else, so that layers move a lot."""
    draw = random.Random(num_stages)
    inner = range(1, len(is_shared))
    return lambda subnet: Partition(
        (0, *sorted(draw.sample(inner, num_stages - 1)), len(is_shared))
    )


class Recorder(Observer):
    """Notes when each life has its first loss, and how many losses there are in all."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._is_new = True

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        os.write(self._file, f"{time.time() if self._is_new else 0}\n".encode())
        self._is_new = False

    def on_note(self, text: str) -> None:
        self._is_new |= "going on" in text


def has_cut(there: checkpoints.CheckpointFolder, sequence_id: int) -> bool:
    """Whether there is a checkpoint to go on from; on a slow disk the run waits for its first."""
    deadline = time.monotonic() + 10
    while sequence_id >= 12 and not there.cuts and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(there.cuts)


def live(case: Case, path: Path, marker: Path, number: int, steps: int) -> None:
    """One life of the run, in a process of its own; ends with status 0 when it is complete."""
    resume = (path / "manifest.json").exists()
    if "mirrored" in case.mode:
        PLACEMENTS["balanced"] = restless
        layer_store.KEPT_AWAY = 2
    inject(case, Killer(case, marker))
    if case.point == "recovery":  # which is a second kill: the first one makes it necessary
        first = Killer(replace(case, call=1), marker.with_suffix(".first"))
        there = checkpoints.CheckpointFolder(path / "checkpoints")
        before(StageUpdates, "_write", first, lambda write: has_cut(there, write.sequence_id))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    execution = {"checkpoint_every": 4, "backward": case.backward, **MODES[case.mode]}
    if case.groups:
        execution |= {"groups": case.groups[number % len(case.groups)], "window": 4 * PASSES}
    if case.restarts:
        execution["max_restarts"] = RESTARTS
    try:
        train(
            path, data_of(case), steps=steps, stages=case.stages, resume=resume,
            execution=execution, observer=Recorder(marker.with_suffix(".losses")),
            recipe=recipe_of(case),
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
        process = _FORK.Process(target=live, args=(case, path, marker, len(ends), steps))
        process.start()
        process.join(LIFE_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"{case}: a life did not end")
        ends.append(process.exitcode)
        process.close()
    num_losses = steps * (PASSES if case.groups else 1)
    return {"case": str(case), "ends": ends, **found(marker, num_losses, time.time())}


def data_of(case: Case | None) -> Calm:
    return Calm(partial(spaces.vectors, rows=case.rows) if case else spaces.vectors)


def recipe_of(case: Case) -> dict | None:
    return {"passes": f"accumulate:{PASSES}", "clip_global_norm": 1.0} if case.groups else None


def found(marker: Path, num_losses: int, end: float) -> dict:
    """What the kills cost: steps that were done again, seconds from each kill to the next loss."""
    kills = [each.stat().st_mtime for each in (marker.with_suffix(".first"), marker)
             if each.exists()]  # fmt: skip
    losses = list(map(float, marker.with_suffix(".losses").read_text().split()))
    firsts = [each for each in losses if each]
    recoveries = [min([t for t in firsts if t > kill], default=end) - kill for kill in kills]
    return {
        "hit": marker.exists(),
        "repeated_steps": len(losses) - num_losses,
        "recovery_seconds": [round(each, 2) for each in recoveries],
    }


def reference(scratch: Path, steps: int = 24, case: Case | None = None) -> Path:
    """The undisturbed run; of a case, that of its recipe."""
    recipe = recipe_of(case) if case else None
    run = train(scratch / "whole", data_of(case), steps=steps, recipe=recipe)
    return run.directory.path

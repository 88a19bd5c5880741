"""Seeded kills of blockwise distillations: each life has other stages and another placement."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import naspipe as npp
from naspipe.config.wiring import CREDIT
from naspipe.store.checkpoints import CheckpointFolder
from naspipe.store.compare import compare_runs
from naspipe.wire.messages import InputMessage
from naspipe.wire.reports import Observer
from naspipe.wire.transport import ZmqTransport
from naspipe.worker.blocks.compute import StageCompute
from naspipe.worker.blocks.updates import StageUpdates
from naspipe.worker.driver import StageDriver
from tests.faults.block_run import BLOCKS, EVERY, PASSES, STEPS, Life, distill, students
from tests.faults.storm import LIFE_SECONDS, Killer, before, inject

_FORK = multiprocessing.get_context("fork")

CALLS = {
    "forward": 180, "backward": 110, "write": 25, "output": 70, "credit": 40, "moment": 60,
    "asked": 60, "stopping": 60, "sum": 25, "join": 25, "capture": 20, "shard": 6, "publish": 20,
    "rename": 18, "recovery": 1,
}  # fmt: skip
"""The last call of a point that some stage comes to. A moment's are hundredths of a second."""

POINTS = tuple(CALLS)
"""Where a process is killed. ``output`` and ``credit`` are messages of taps, ``moment`` is a time
after the first block. ``asked`` is SIGTERM; ``stopping`` is a kill while the stages carry it out.
``recovery`` is a second kill, when the resume restores a layer."""

RELAYED = ("pairs", "packed", "layers", "free")
PLACEMENTS = (*RELAYED, "hybrid", "shared")

MODES = {"plain": {}, "swapped": {"memory_budget": "2x"}, "recompute": {"recompute": True}}


@dataclass(frozen=True)
class Case:
    """One fault: named by what it does, so that a failure can be run again."""

    point: str
    victim: str
    """``launcher``, ``stage N``, or ``a stage`` (the first that comes to the point so often)."""
    call: int
    lives: tuple[Life, ...]
    """One after the other."""
    mode: str = "plain"
    slow: int = 0
    """The student block whose passes take longer in the first life, so that it is behind."""
    is_late: bool = True
    """Whether calls count from the first checkpoint on that all blocks have."""
    backward: str = "whole"

    def __str__(self) -> str:
        lives = ", then ".join(map(str, self.lives[: 3 if self.point == "recovery" else 2]))
        point = f"{'late ' if self.is_late else ''}{self.point} {self.call}"
        return f"{self.victim} at {point}, {lives}; {self.mode}, {self.backward}, slow {self.slow}"


def draw_case(seed: int) -> Case:
    draw = random.Random(seed)
    point = POINTS[seed % len(POINTS)]
    placements = draw.sample(PLACEMENTS, len(PLACEMENTS))
    if point in ("output", "credit"):  # where passes stay on their stage there are none
        placements.sort(key=lambda each: each not in RELAYED)
    if point in ("sum", "join"):
        placements.sort(key=lambda each: each != "shared")
    first = draw.choice((2, 3, 4))
    others = draw.sample([each for each in (1, 2, 3, 4) if each != first], 3)
    lives = tuple(
        Life(stages, placement, draw.randint(1, 4))
        for stages, placement in zip((first, *others), placements, strict=False)
    )
    victim = draw.choice(("a stage", "launcher"))
    if point in ("publish", "rename"):
        victim = "launcher"
    elif point in ("sum", "join", "capture", "asked"):
        victim = "launcher" if point == "asked" else "a stage"
    elif point == "moment":
        victim = draw.choice(("launcher", *(f"stage {n}" for n in range(first))))
    is_late = draw.random() < 0.8
    call = draw.randint(1, CALLS[point] // (4 if is_late else 1) or 1)
    mode, slow = draw.choice(list(MODES)), draw.randrange(BLOCKS)
    return Case(point, victim, call, lives, mode, slow, is_late)


class Asker(Killer):
    """Sends the launcher SIGTERM, once for all lives, and lets everybody go on."""

    def strike(self) -> None:
        os.kill(self.launcher, signal.SIGTERM)


class Recorder(Observer):
    """Notes which life ends which step of which block when; looks for a killer at each."""

    def __init__(self, path: Path, life: int, killer=lambda: None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._life, self._killer = life, killer

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        step, number = divmod(sequence_id, PASSES)
        if number == PASSES - 1:
            os.write(self._file, f"{self._life} {time.time()} {stream} {step}\n".encode())
            self._killer()


class Behind:
    """Passes calls on from the first checkpoint on that all blocks have."""

    def __init__(self, path: Path, then) -> None:
        self._folders = [CheckpointFolder(path / f"block-{n}/checkpoints") for n in range(BLOCKS)]
        self._then, self._is_there = then, False

    def __call__(self) -> None:
        self._is_there = self._is_there or all(folder.cuts for folder in self._folders)
        if self._is_there:
            self._then()


class Fuse:
    """Lights a timer at its first call."""

    def __init__(self, seconds: float, then) -> None:
        self._seconds, self._then, self._is_lit = seconds, then, False

    def __call__(self) -> None:
        if not self._is_lit:
            self._is_lit = True
            timer = threading.Timer(self._seconds, self._then)
            timer.daemon = True
            timer.start()


def threaten(case: Case, path: Path, marker: Path):
    """Patch this process, and so its stages; returns what to call at each step's end."""
    at_once, first = replace(case, call=1), marker.with_suffix(".first")

    def armed(killer):
        return Behind(path, killer) if case.is_late else killer

    killer = armed(Killer(case, marker))
    match case.point:
        case "output" | "credit":
            is_credit = case.point == "credit"
            before(ZmqTransport, "send", killer, lambda _, message: (
                isinstance(message, InputMessage) and message.name.startswith(CREDIT) == is_credit
            ))  # fmt: skip
        case "moment":
            before(StageCompute, "run_block", armed(Fuse(case.call / 100, Killer(at_once, marker))))
        case "asked":
            return armed(Asker(case, marker))
        case "stopping":
            before(StageDriver, "_stop", Killer(at_once, marker))
            return armed(Asker(case, first))
        case "recovery":
            inject(case, killer)
            again = Killer(replace(at_once, victim="a stage"), first)
            before(StageUpdates, "_write", Behind(path, again))
        case _:
            inject(case, killer)
    return lambda: None


def live(case: Case, path: Path, marker: Path, number: int) -> None:
    """One life of the run, in a process of its own; ends with status 0 when it is complete."""
    life, observe = case.lives[number % len(case.lives)], threaten(case, path, marker)
    if not number:
        before(StageCompute, "run_block", lambda: time.sleep(0.003),
               lambda task, *_: task.stream == case.slow)  # fmt: skip
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)  # the parent's others are not in this process
    try:
        distill(
            path, life, resume=(path / "block-0" / "manifest.json").exists(),
            observer=Recorder(marker.with_suffix(".steps"), number, observe),
            # Verification delays the first checkpoint, so that few late points would be reached.
            execution={
                "checkpoint_every": EVERY, "backward": case.backward, "verify": "0",
                **MODES[case.mode],
            },
        )  # fmt: skip
    except npp.NaspipeError as error:
        marker.with_suffix(f".said-{number}").write_text(str(error))
        os._exit(1)
    os._exit(0)


def run_case(case: Case, scratch: Path) -> dict:
    """Live until the run is complete; returns what happened."""
    path, marker, ends = scratch / "run", scratch / "marker", []
    while not ends or ends[-1] != 0:
        said = marker.with_suffix(f".said-{len(ends) - 1}")
        assert len(ends) < 4, f"ended with {ends}: {said.exists() and said.read_text()}"
        process = _FORK.Process(target=live, args=(case, path, marker, len(ends)))
        process.start()
        process.join(LIFE_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"{case}: a life did not end")
        ends.append(process.exitcode)
        process.close()
    return {"case": str(case), "ends": ends, **found(path, marker, time.time())}


def found(path: Path, marker: Path, end: float) -> dict:
    """What the kills cost, and how far blocks were apart when the first life ended."""
    lines = [line.split() for line in marker.with_suffix(".steps").read_text().splitlines()]
    steps = [(int(life), float(when), stream, int(step)) for life, when, stream, step in lines]
    newest = dict.fromkeys(range(BLOCKS), -1)
    newest |= {int(stream): step for life, _, stream, step in steps if not life}
    recoveries = []
    for life, kill in enumerate(
        each.stat().st_mtime for each in (marker.with_suffix(".first"), marker) if each.exists()
    ):
        recoveries.append(min([when for own, when, *_ in steps if own > life], default=end) - kill)
    life = npp.Run(students()[0], path / "block-0").manifest["life"]
    return {
        "hit": marker.exists(),
        "apart": max(newest.values()) - min(newest.values()),
        "went_on_at": life["first"][0] // PASSES,
        "repeated_steps": len(steps) - STEPS * BLOCKS,
        "recovery_seconds": [round(each, 2) for each in recoveries],
    }


def reference(scratch: Path) -> Path:
    """The undisturbed run, on one stage."""
    distill(scratch / "whole", Life(1, "free", 4))
    return scratch / "whole"


def verdict(whole: Path, path: Path) -> str:
    """``IDENTICAL``, or what differs first, of student blocks and of the teacher's."""
    for place in [*(f"block-{n}" for n in range(BLOCKS)), *(f"teacher-{n}" for n in range(BLOCKS))]:
        (comparison,) = compare_runs([whole / place, path / place])
        if not comparison.is_identical:
            return f"{place}: {comparison}"
    return "IDENTICAL"

"""Blockwise distillation on Fashion-MNIST; writes artifacts/blockwise/losses.json.

Two teachers are trained, and each teaches a student block by block: MobileNetV2 a supernet like
ProxylessNAS, and VGG-8 a network of depthwise separable convolutions. Of each block: the loss of
its first steps, and of its last ones. ``--quick`` does a few steps on digits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from rich.box import SIMPLE_HEAD  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

import naspipe as npp  # noqa: E402
import search_spaces  # noqa: E402
from naspipe.frontend.given.held_out import find_held_out  # noqa: E402
from naspipe.frontend.given.workloads import find_workload  # noqa: E402
from naspipe.runtime.devices.environment import describe_environment  # noqa: E402

SHARE = 10
"""Of a block's steps that its first and its last loss are the mean of: one in so many."""

JUDGED = {"validate_batches": 16, "validate_subnets": "1"}


@dataclass(frozen=True)
class Pair:
    """A teacher and its student."""

    teacher: str
    student: str
    teacher_steps: int
    student_steps: int


PAIRS = (Pair("mobilenet-v2", "proxyless", 600, 600), Pair("vgg8", "separable", 1500, 600))

QUICK = tuple(Pair(pair.teacher, pair.student, 4, 4) for pair in PAIRS)


@dataclass(frozen=True)
class Task:
    """What all pairs have in common."""

    data: str
    sizes: dict[str, int]
    stages: int
    seed: int
    place: Path


def teach(pair: Pair, task: Task) -> tuple[npp.Run, Any]:
    """The teacher, trained on the labels, and its data."""
    named = find_workload(pair.teacher, "tiny", task.data, None, task.sizes)
    held_out = find_held_out(pair.teacher, "tiny", task.data, sizes=task.sizes)
    recipe = {name: getattr(named.recipe, name) for name in ("optimizer", "lr", "schedule")}
    run = npp.train(
        named.space, named.data, named.loss, steps=pair.teacher_steps, seed=task.seed,
        stages=task.stages, recipe={**recipe, "optimizer_options": named.recipe.optimizer_options},
        held_out=held_out, execution={"validate_every": pair.teacher_steps, **JUDGED},
        run_dir=task.place / pair.teacher,
    )  # fmt: skip
    return run, named.data


def distil(pair: Pair, task: Task, teacher: npp.Run, data: Any) -> tuple[npp.Run, ...]:
    """The student's blocks, as ``naspipe distill`` trains them."""
    kind = search_spaces.student_kind(pair.student)
    blocks = npp.Teacher(teacher).blocks(search_spaces.cuts(pair.teacher))
    students = search_spaces.students_of(pair.teacher, pair.student, "tiny", data.info)
    return npp.distill_blockwise(
        blocks, students, data, steps=pair.student_steps, seed=task.seed, stages=task.stages,
        recipe=kind.recipe, run_dir=task.place / pair.student,
    ).blocks  # fmt: skip


def ends(losses: Sequence[float]) -> tuple[float, float]:
    """The means of the first losses and of the last ones."""
    count = max(1, len(losses) // SHARE)
    return statistics.mean(losses[:count]), statistics.mean(losses[-count:])


def measured(pair: Pair, task: Task) -> dict[str, Any]:
    """Of one pair.

    What the student gets right as a whole belongs here, too, beside the teacher's top-1: it needs
    blocks that are rated and put together.
    """
    start = time.monotonic()
    teacher, data = teach(pair, task)
    taught = time.monotonic()
    blocks = distil(pair, task, teacher, data)
    return {
        "teacher": pair.teacher, "student": pair.student,
        "steps": [pair.teacher_steps, pair.student_steps],
        "seconds": [round(taught - start, 1), round(time.monotonic() - taught, 1)],
        "teacher_top1": teacher.validations[-1].scores["top1"],
        "losses": [ends(run.losses) for run in blocks],
    }  # fmt: skip


def shown(row: dict[str, Any]) -> Table:
    """A pair's blocks, one a line."""
    table = Table("block", "first loss", "last loss", box=SIMPLE_HEAD)
    for number, (first, last) in enumerate(row["losses"]):
        table.add_row(str(number), f"{first:.4f}", f"{last:.4f}")
    return table


def main(words: Sequence[str] | None = None) -> None:
    """Train, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few steps on digits")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/blockwise/losses.json")
    arguments = parser.parse_args(words)
    data, sizes = ("digits", {"batch_size": 8}) if arguments.quick else ("fashion-mnist", {})
    console, rows = Console(highlight=False), []
    with tempfile.TemporaryDirectory() as scratch:
        task = Task(data, sizes, arguments.stages, arguments.seed, Path(scratch))
        for pair in QUICK if arguments.quick else PAIRS:
            row = measured(pair, task)
            top1 = f"{row['teacher_top1']:.3f}"
            console.print(f"{pair.student} of {pair.teacher}, which has top-1 {top1}")
            rows.append(row)
            console.print(shown(rows[-1]))
    result = {"environment": describe_environment(), "data": data, "pairs": rows}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Blockwise distillation on Fashion-MNIST; writes artifacts/blockwise/accuracy.json.

Two teachers are trained, and each teaches a student block by block: MobileNetV2 a supernet like
ProxylessNAS, and VGG-8 a network of depthwise separable convolutions. Of each block: the loss of
its first steps, and of its last ones. Then the paths of each block are rated, the best ones with
fewer parameters than the teacher's are put together, and that network is fine-tuned as a whole.
``--quick`` does a few steps on digits.
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
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from rich.box import SIMPLE_HEAD  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

import naspipe as npp  # noqa: E402
import search_spaces  # noqa: E402
from naspipe.inputs.held_out import find_held_out  # noqa: E402
from naspipe.inputs.named import find_workload  # noqa: E402
from naspipe.machine.determinism import describe_environment  # noqa: E402

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
    tuning_steps: int


PAIRS = (
    Pair("mobilenet-v2", "proxyless", 500, 500, 800),
    Pair("vgg8", "separable", 800, 400, 800),
)

QUICK = tuple(Pair(pair.teacher, pair.student, 4, 60, 4) for pair in PAIRS)
"""Steps enough that every layer is drawn."""

SMALLER = 0.9
"""Of the teacher's parameters, what the student may have."""

TUNING_RATE = 0.01


@dataclass(frozen=True)
class Task:
    """What all pairs have in common."""

    data: str
    sizes: dict[str, int]
    stages: int
    seed: int
    place: Path


def teach(pair: Pair, task: Task) -> tuple[npp.Run, Any, Any]:
    """The teacher, trained on the labels, its data, and what is held out."""
    named = find_workload(pair.teacher, "tiny", task.data, None, task.sizes)
    held_out = find_held_out(pair.teacher, "tiny", task.data, sizes=task.sizes)
    recipe = {name: getattr(named.recipe, name) for name in ("optimizer", "lr", "schedule")}
    run = npp.train(
        named.space, named.data, named.loss, steps=pair.teacher_steps, seed=task.seed,
        stages=task.stages, recipe={**recipe, "optimizer_options": named.recipe.optimizer_options},
        held_out=held_out, execution={"validate_every": pair.teacher_steps, **JUDGED},
        run_dir=task.place / pair.teacher,
    )  # fmt: skip
    return run, named.data, held_out


def distil(pair: Pair, task: Task, teacher: npp.Run, data: Any) -> npp.Blockwise:
    """The student's blocks, as ``naspipe distill`` trains them."""
    kind = search_spaces.student_kind(pair.student)
    blocks = npp.Teacher(teacher).blocks(search_spaces.cuts(pair.teacher))
    students = search_spaces.students_of(pair.teacher, pair.student, "tiny", data.info)
    return npp.distill_blockwise(
        blocks, students, data, steps=pair.student_steps, seed=task.seed, stages=task.stages,
        recipe=kind.recipe, run_dir=task.place / pair.student,
    )  # fmt: skip


def compose(
    pair: Pair, task: Task, found: npp.Blockwise, data: Any, held_out: Any
) -> dict[str, Any]:
    """The best paths as one network: what it gets right as it is, and fine-tuned."""
    of_teacher = sum(each.numel() for block in found.teachers for each in block.parameters())
    ratings = npp.rate_blocks(found, held_out, calibrate=2, validate=4, stages=task.stages)
    best = npp.combine_blocks(ratings, {"params": SMALLER * of_teacher})
    before = npp.validate_blocks(
        found, best.choices, held_out, calibrate=4, validate=JUDGED["validate_batches"]
    )
    run = npp.train(
        found.space(best.choices), data, torch.nn.CrossEntropyLoss(), steps=pair.tuning_steps,
        seed=task.seed, recipe="fine-tune", lr=TUNING_RATE, stages=task.stages, held_out=held_out,
        execution={"validate_every": pair.tuning_steps, **JUDGED},
        run_dir=task.place / f"{pair.student}-whole",
    )  # fmt: skip
    return {
        "choices": [list(each) for each in best.choices],
        "params": [sum(each.numel() for each in found.network(best.choices).parameters()),
                   of_teacher],
        "rated": [len(each.candidates) for each in ratings],
        "composed_top1": before.top1,
        "tuned_top1": run.validations[-1].scores["top1"],
    }  # fmt: skip


def ends(losses: Sequence[float]) -> tuple[float, float]:
    """The means of the first losses and of the last ones."""
    count = max(1, len(losses) // SHARE)
    return statistics.mean(losses[:count]), statistics.mean(losses[-count:])


def measured(pair: Pair, task: Task) -> dict[str, Any]:
    """Of one pair."""
    times = [time.monotonic()]
    teacher, data, held_out = teach(pair, task)
    times.append(time.monotonic())
    found = distil(pair, task, teacher, data)
    times.append(time.monotonic())
    whole = compose(pair, task, found, data, held_out)
    times.append(time.monotonic())
    return {
        "teacher": pair.teacher, "student": pair.student, "seed": task.seed,
        "steps": [pair.teacher_steps, pair.student_steps, pair.tuning_steps],
        "seconds": [round(end - begin, 1) for begin, end in pairwise(times)],
        "teacher_top1": teacher.validations[-1].scores["top1"],
        **whole,
        "losses": [ends(run.losses) for run in found.blocks],
    }  # fmt: skip


def said(row: dict[str, Any]) -> str:
    """A pair in one line."""
    own, of_teacher = row["params"]
    return (
        f"{row['student']} of {row['teacher']}, seed {row['seed']}: teacher "
        f"{row['teacher_top1']:.3f}; put together {row['composed_top1']:.3f}, fine-tuned "
        f"{row['tuned_top1']:.3f}, with {own / of_teacher:.2f} of the parameters"
    )


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
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--only", nargs="+", choices=[pair.student for pair in PAIRS])
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/blockwise/accuracy.json")
    arguments = parser.parse_args(words)
    data, sizes = ("digits", {"batch_size": 8}) if arguments.quick else ("fashion-mnist", {})
    console, rows = Console(highlight=False), []
    for pair in QUICK if arguments.quick else PAIRS:
        for seed in arguments.seeds[:1] if arguments.quick else arguments.seeds:
            if arguments.only and pair.student not in arguments.only:
                continue
            with tempfile.TemporaryDirectory() as scratch:
                row = measured(pair, Task(data, sizes, arguments.stages, seed, Path(scratch)))
            rows.append(row)
            console.print(said(row))
            console.print(shown(row))
    result = {"environment": describe_environment(), "data": data, "pairs": rows}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What teachers are worth on Fashion-MNIST; writes artifacts/teachers/accuracy.json.

By three seeds. BYOL with a teacher of this step, of the step before, and with the student one step
old, too (the symmetric ablation of TSPipe): a linear probe of its features. A convolutional network
with a vision transformer as its teacher, and alone. A supernet with that teacher, and alone: how 20
of its subnets do, and in what order.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from rich.box import SIMPLE_HEAD  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from torch import nn  # noqa: E402

import naspipe as npp  # noqa: E402
from naspipe.api.train import train_together  # noqa: E402
from naspipe.config.definition import Settings  # noqa: E402
from naspipe.config.recipe_file import read_recipe  # noqa: E402
from naspipe.inputs.held_out import find_held_out  # noqa: E402
from naspipe.inputs.named import find_workload  # noqa: E402
from naspipe.jobs.workload import Workload  # noqa: E402
from naspipe.machine.determinism import describe_environment  # noqa: E402
from naspipe.search.scores import kendalls_tau  # noqa: E402

SEEDS = (1, 2, 3)
JUDGED = {"validate_batches": 16, "validate_calibrate": 4}


def student(space: str, recipe: str | None, steps: int, seed: int) -> Workload:
    """A named network, with what it is judged by."""
    file = read_recipe(recipe) if recipe else None
    sizes = dict(file.applied_to(Settings()).data) if file else {}
    named = find_workload(space, "tiny", None, None, sizes)
    found = file.applied_to(Settings(recipe=named.recipe)).recipe if file else named.recipe
    data = "fashion-mnist"
    held_out = find_held_out("cnn", "tiny", data, sizes={"batch_size": 64})
    defined = named.redefined(recipe=found, steps=steps, seed=seed)
    return replace(defined, held_out=held_out)


def judged(workload: Workload, teacher: Any, path: Path, **how: Any) -> tuple[Any, float]:
    """The run, and the mean top-1 of what was judged at its end."""
    execution = npp.Execution(validate_every=workload.definition.steps, **{**JUDGED, **how})
    (run, *_) = train_together([workload], execution, path, teacher=teacher)
    return run, run.validations[-1].scores["top1"]


def stale(space: npp.Space) -> npp.Space:
    """The same chain, each layer of which is read one step old."""
    blocks = [
        block if isinstance(block, npp.Shared) else npp.Shared(f"block{n}", block.candidates[0])
        for n, block in enumerate(space.blocks)
    ]
    return npp.Space(space.name, [replace(block, rule=npp.Lag(1)) for block in blocks])


def byol(lag: int, seed: int, steps: int, is_stale: bool = False) -> float:
    """Accuracy of a linear probe of the student's features."""
    workload = student("byol", "byol", steps, seed)
    if is_stale:
        workload = replace(workload, space=stale(workload.space)).redefined()
    with tempfile.TemporaryDirectory() as scratch:
        return judged(
            workload, npp.Momentum(0.99, 1.0, lag=lag), Path(scratch) / "run",
            validate_probe="ridge", validate_probe_batches=64, validate_subnets="1",
        )[1]  # fmt: skip


def convolutional(seed: int, steps: int, teacher: Path | None) -> float:
    """Top-1 of the student."""
    workload = student("cnn", "soft-target", steps, seed)
    made = None
    if teacher is not None:
        made = npp.Teacher(npp.Run(find_workload("vit", "tiny", None, None).space, teacher))
    with tempfile.TemporaryDirectory() as scratch:
        return judged(workload, made, Path(scratch) / "run", validate_subnets="1")[1]


def supernet(seed: int, steps: int, teacher: Path | None) -> list[float]:
    """Top-1 of 20 subnets."""
    workload = student("cv.c3", None, steps, seed)
    workload = replace(workload, loss=npp.losses.SoftTarget(nn.CrossEntropyLoss()))
    made = None
    if teacher is not None:
        made = npp.Teacher(npp.Run(find_workload("vit", "tiny", None, None).space, teacher))
    with tempfile.TemporaryDirectory() as scratch:
        run, _ = judged(workload, made, Path(scratch) / "run", validate_subnets="20")
        return [each.scores["top1"] for each in run.validations[-1].subnets]


def main() -> None:
    """Train, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--byol-steps", type=int, default=120)
    parser.add_argument("--teacher-steps", type=int, default=1500)
    parser.add_argument("--student-steps", type=int, default=400)
    parser.add_argument("--supernet-steps", type=int, default=800)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/teachers/accuracy.json")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    rows: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as scratch, ProcessPoolExecutor(2) as pool:
        path = Path(scratch) / "vit"
        teaching = student("vit", None, arguments.teacher_steps, 7)
        _, of_teacher = judged(teaching, None, path, validate_subnets="1")
        console.print(f"the transformer that teaches: top-1 {of_teacher:.3f}")
        asked = {
            **{
                f"byol, K = {lag}{', student too' if is_stale else ''}": [
                    pool.submit(byol, lag, seed, arguments.byol_steps, is_stale) for seed in SEEDS
                ]
                for lag, is_stale in ((0, False), (1, False), (1, True))
            },
            **{
                f"cnn, {'taught' if teacher else 'alone'}": [
                    pool.submit(convolutional, seed, arguments.student_steps, teacher)
                    for seed in SEEDS
                ]
                for teacher in (None, path)
            },
            **{
                f"cv.c3, {'taught' if teacher else 'alone'}": [
                    pool.submit(supernet, seed, arguments.supernet_steps, teacher) for seed in SEEDS
                ]
                for teacher in (None, path)
            },
        }
        for name, futures in asked.items():
            rows[name] = [future.result() for future in futures]
            console.print(name, rows[name] if "cv" not in name else "")
    table = Table("run", "top-1, median (least to most)", box=SIMPLE_HEAD)
    for name, values in rows.items():
        means = [statistics.mean(v) if isinstance(v, list) else v for v in values]
        table.add_row(
            name, f"{statistics.median(means):.3f} ({min(means):.3f} to {max(means):.3f})"
        )
    console.print(table)
    taus = [
        kendalls_tau(*pair)
        for pair in zip(rows["cv.c3, alone"], rows["cv.c3, taught"], strict=True)
    ]
    console.print(f"rank correlation of the 20 subnets, alone and taught: {taus}")
    result = {
        "environment": describe_environment(), "teacher": of_teacher, "rows": rows, "tau": taus,
        "steps": {key: value for key, value in vars(arguments).items() if key.endswith("steps")},
    }  # fmt: skip
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

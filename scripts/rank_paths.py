"""Do ratings tell which paths of a block are good? Writes artifacts/blockwise/ranks.json.

A block of a supernet is trained by its teacher, and all of its paths are rated. Then each path is
trained alone, from first weights, for as many steps. Kendall's tau of both orders stands with its
bootstrap interval (95 %, over paths).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402

import naspipe as npp  # noqa: E402
import search_spaces  # noqa: E402
from naspipe.api.block_rating import Lessons  # noqa: E402
from naspipe.config.space import Block, Space  # noqa: E402
from naspipe.distill.blockwise import BlockLoss  # noqa: E402
from naspipe.machine.determinism import describe_environment  # noqa: E402
from naspipe.search.scores import interval, kendalls_tau  # noqa: E402
from scripts.distill_images import PAIRS, Pair, Task, teach  # noqa: E402


def alone(space: Space, choices: Sequence[int]) -> Space:
    """One path as a space of its own."""
    candidates = zip(space.blocks, space.chain(tuple(choices)), strict=True)
    return Space(
        f"{space.name}-{'-'.join(map(str, choices))}",
        [Block([block.candidates[n]], fields=block.fields) for block, n in candidates],
    )


def ranked(pair: Pair, task: Task, steps: int) -> dict[str, Any]:
    """The first block's paths: their ratings, and their losses when they are trained alone."""
    teacher, data, held_out = teach(pair, task)
    blocks = npp.Teacher(teacher).blocks(search_spaces.cuts(pair.teacher))[:1]
    students = search_spaces.students_of(pair.teacher, pair.student, "tiny", data.info)[:1]
    loss = torch.nn.functional.mse_loss
    recipe = search_spaces.student_kind(pair.student).recipe
    found = npp.distill_blockwise(
        blocks, students, data, steps=steps, seed=task.seed, stages=task.stages, recipe=recipe,
        last_loss=BlockLoss(), run_dir=task.place / "blocks",
    )  # fmt: skip
    (rating,) = npp.rate_blocks(found, held_out, last_measure="l2", calibrate=4, validate=8)
    scores, losses = [], []
    for candidate in track(rating.candidates, "paths trained alone", console=Console(stderr=True)):
        name = "-".join(map(str, candidate.choices))
        run = npp.train(
            alone(students[0], candidate.choices), Lessons(found, 0, data), loss, steps=steps,
            seed=task.seed, recipe=recipe, held_out=Lessons(found, 0, held_out),
            execution={"validate_every": steps, "validate_batches": 8, "validate_subnets": "1"},
            run_dir=task.place / name,
        )  # fmt: skip
        scores.append(candidate.scores.loss)
        losses.append(run.validations[-1].scores["loss"])
    return {
        "student": pair.student, "steps": steps, "seed": task.seed, "paths": len(scores),
        "tau": kendalls_tau(scores, losses), "interval": interval(scores, losses),
        "ratings": scores, "losses": losses,
    }  # fmt: skip


def main() -> None:
    """Train, rate, train again, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--teacher-steps", type=int, default=300)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/blockwise/ranks.json")
    arguments = parser.parse_args()
    pair = replace(PAIRS[0], teacher_steps=arguments.teacher_steps)
    with tempfile.TemporaryDirectory() as scratch:
        task = Task(arguments.data, {}, 1, arguments.seed, Path(scratch))
        found = ranked(pair, task, arguments.steps)
    low, high = found["interval"]
    Console(highlight=False).print(
        f"{found['paths']} paths: Kendall's tau {found['tau']:.2f} ({low:.2f} to {high:.2f})"
    )
    result = {"environment": describe_environment(), "data": arguments.data, **found}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Blockwise distillation: each block of a teacher teaches one of the student's, all side by side.

Then the paths of each block are rated, and the best network within a limit is put together. Run
it: ``python examples/blockwise.py``
"""

from __future__ import annotations

from pathlib import Path

from digits_parts import Digits, Residual
from teachers import network
from torch import nn

import naspipe as npp


def pooled():
    """What each of the teacher's first blocks ends with."""
    return nn.ReLU(), nn.MaxPool2d(2)


def student(name, channels, out):
    """Two choice blocks, then what gives the teacher's shape."""
    kinds = [lambda: nn.Identity(), lambda: Residual(1), lambda: Residual(3)]
    into = npp.Shared("into", lambda: nn.Conv2d(channels, 16, 1))
    end = npp.Shared("end", lambda: nn.Sequential(nn.Conv2d(16, out, 3, padding=1), *pooled()))
    return npp.Space(name, [into, npp.Block(kinds), npp.Block(kinds), end])


def main(run_dir="runs/blocks", steps=200, stages=2):
    """Distil, rate, combine; returns what was found and the best choices."""
    data, place = npp.from_dataset(Digits(), batch_size=64), Path(run_dir)
    held_out = npp.from_dataset(Digits(held_out=True), batch_size=99, shuffle=False)
    large = npp.train(
        npp.chain(network()), data, nn.CrossEntropyLoss(), optimizer="Adam", lr=0.003, steps=steps,
        run_dir=place / "teacher",
    )  # fmt: skip
    teacher = npp.Teacher(large)
    head = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
    students = [student("first", 1, 32), student("second", 32, 64), head]
    found = npp.distill_blockwise(
        teacher.blocks([1, 2]), students, data, steps=steps, stages=stages, optimizer="Adam",
        lr=0.003, run_dir=place / "students",
    )  # fmt: skip
    ratings = npp.rate_blocks(found, held_out, calibrate=0, validate=2)
    best = npp.combine_blocks(ratings, {"params": 30_000})
    return found, best, npp.validate_blocks(found, best.choices, held_out)


if __name__ == "__main__":
    found, best, judged = main()
    print(f"{best.choices}: {judged}")

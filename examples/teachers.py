"""Distillation: every subnet learns from a network that was trained before.

The teacher's layers run where the student's stages wait. Run it: ``python examples/teachers.py``
"""

from __future__ import annotations

from pathlib import Path

from digits_parts import Digits, space
from torch import nn

import naspipe as npp


def network():
    """The teacher, as the list of its layers: images (batch, 1, 8, 8) to (batch, 10)."""
    return [
        nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(256, 10)),
    ]


def main(run_dir="runs/taught", steps=100, stages=2):
    """Train a teacher, then a supernet that learns from it; returns both runs."""
    data, place = npp.from_dataset(Digits(), batch_size=64), Path(run_dir)
    how = {"optimizer": "Adam", "lr": 0.003, "steps": steps}
    large = npp.train(
        npp.chain(network()), data, nn.CrossEntropyLoss(), run_dir=place / "teacher", **how
    )
    student = npp.train(
        space(),
        data,
        npp.losses.SoftTarget(temperature=4.0, weight=0.5),
        teacher=npp.Teacher(large),
        passes=2,  # the teacher goes ahead with the second while the student is at the first
        stages=stages,
        run_dir=place / "student",
        **how,
    )
    return large, student


if __name__ == "__main__":
    large, student = main()
    print(f"the teacher's loss {large.losses[-1]:.3f}, the student's {student.losses[-1]:.3f}")

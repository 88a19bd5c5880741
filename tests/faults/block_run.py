"""A small blockwise distillation whose lives have other stages and placements."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

import naspipe as npp
from tests.equivalence import spaces
from tests.faults.helpers import Calm

STEPS, PASSES, BLOCKS, EVERY = 20, 4, 4, 2


@dataclass(frozen=True)
class Life:
    """How one life of a run is carried out."""

    stages: int
    placement: str
    window: int

    def __str__(self) -> str:
        return f"{self.placement} on {self.stages}"


def teachers():
    torch.manual_seed(5)
    return [
        nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU()),
        nn.Sequential(nn.Linear(24, 24), nn.Tanh()),
        nn.Sequential(nn.Linear(24, 24), nn.BatchNorm1d(24), nn.Tanh()),
        nn.Sequential(nn.Linear(24, 10)),
    ]


def students():
    """Two supernets, one with paths drawn from architecture parameters, and a plain layer."""

    def wide(a, b, hidden):
        return nn.Sequential(
            nn.Linear(a, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(hidden, b),
        )  # fmt: skip

    def choices(a, b):
        return [lambda h=h: wide(a, b, h) for h in (8, 12, 16)]

    return [
        npp.Space("first", [npp.Block(choices(16, 20)), npp.Block(choices(20, 24))]),
        npp.mixed.student("mixed", [choices(24, 24), [nn.Identity, lambda: wide(24, 24, 8)]]),
        npp.Space("third", [npp.Block(choices(24, 24))]),
        npp.Space("last", [npp.Shared("only", lambda: nn.Linear(24, 10))]),
    ]


def held_out(seed, number):
    return spaces.vectors(seed, 50_000 + number)


def distill(path, life, *, resume=False, observer=None, execution=None):
    rounds = npp.mixed.Rounds(
        Calm(spaces.vectors), Calm(held_out), every=3, start=6, batches=PASSES
    )
    return npp.distill_blockwise(
        teachers(), students(), rounds, steps=STEPS, stages=life.stages, seed=4, lr=0.05,
        optimizer_options={"momentum": 0.9, "weight_decay": 1e-4, "alpha_lr": 0.1},
        recipe={"passes": f"accumulate:{PASSES}"}, window=life.window, run_dir=path, resume=resume,
        execution={"partition": life.placement, **(execution or {})},
        observer=observer,
    )  # fmt: skip

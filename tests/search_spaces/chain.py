"""A plain loop over a space's chain, for the tests beside it."""

from __future__ import annotations

import random
from typing import Any

import torch

import search_spaces
from naspipe.config.space import Space

IMAGES = {"channels": 1, "height": 28, "width": 28, "classes": 10}
TEXT = {"vocabulary": 50, "padding": 1}
PADDING = 1


def tiny(name: str) -> Space:
    return search_spaces.build(name, "tiny", TEXT if name.startswith("nlp") else IMAGES)


def text_batch(batch: int = 4, source: int = 9, target: int = 7) -> dict[str, torch.Tensor]:
    """Row 0 is full; the others have ever more padding, sources on the left, targets right."""
    rows = {
        "source": torch.randint(2, 50, (batch, source)),
        "previous": torch.randint(2, 50, (batch, target)),
        "target": torch.randint(2, 50, (batch, target)),
    }
    for row in range(1, batch):
        rows["source"][row, : min(row * 2, source - 1)] = PADDING
        rows["previous"][row, max(1, target - row) :] = PADDING
        rows["target"][row, max(1, target - row) :] = PADDING
    return rows


def image_batch(batch: int = 4) -> dict[str, torch.Tensor]:
    return {"input": torch.randn(batch, 1, 28, 28), "target": torch.randint(0, 10, (batch,))}


def batch_for(name: str) -> dict[str, torch.Tensor]:
    return text_batch() if name.startswith("nlp") else image_batch()


def random_choices(space: Space, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(count) for count in space.candidate_counts]


def make(space: Space, choices: list[int]) -> list[Any]:
    """The modules of one subnet, one per block of the chain."""
    return [
        space.blocks[block].candidates[candidate]()
        for block, candidate in enumerate(space.chain(choices))
    ]


def forward(space: Space, modules: list[Any], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the last module returns."""
    passed: tuple[torch.Tensor, ...] = ()
    for block, module in enumerate(modules):
        out = module(*passed, *(batch[field] for field in space.fields(block)))
        passed = out if isinstance(out, tuple) else (out,)
    (scores,) = passed
    return scores

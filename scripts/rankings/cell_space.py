"""NAS-Bench-201's cell through NNI, small enough for two cores, with images and a loss."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from nni.nas.hub.pytorch import NasBench201

    import naspipe as npp
    from naspipe.data.registry import open_data

Architecture = tuple[int, ...]
"""One operation per edge of the cell, as ``OPERATIONS`` counts them."""

LATE = ("stem", "cells_1", "cells_3")
"""What all subnets share, but the end."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is learned: part of the key of every unit."""

    data: str = "fashion-mnist"
    side: int = 16
    """Pixels of a side; images of 28 are halved and get a margin of background."""
    width: int = 8
    """Channels of the stem."""
    cells: int = 1
    """Cells of each of the three stacks."""
    batch: int = 64

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


DIGITS = Problem(data="digits", side=8, width=4, batch=32)
"""For tests."""


class SmallImages:
    """Images in three equal channels, as the stem wants them, of the side that is asked for."""

    def __init__(self, problem: Problem, split: str) -> None:
        self._images = open_data(problem.data, batch_size=problem.batch, split=split)
        self._side = problem.side
        self._dark = float(self._images(0, 0)["input"].min())  # what most corners are
        self.batches_per_epoch: int = self._images.batches_per_epoch
        self.record = {**self._images.record, "side": problem.side}

    def __call__(self, seed: int, number: int) -> dict[str, torch.Tensor]:
        """The batch of that number."""
        batch = self._images(seed, number)
        images = batch["input"]
        if images.shape[-1] > self._side:
            images = torch.nn.functional.avg_pool2d(images, 2)
            margin = (self._side - images.shape[-1]) // 2
            images = torch.nn.functional.pad(images, [margin] * 4, value=self._dark)
        return {**batch, "input": images.expand(-1, 3, -1, -1).contiguous()}


class Setting:
    """A problem's space, data and loss, each made once in a process."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.loss = torch.nn.CrossEntropyLoss()

    @cached_property
    def space(self) -> Any:
        """All shared layers are read as the plain loop reads them."""
        torch.manual_seed(7)
        made = NasBench201(
            stem_out_channels=self.problem.width, num_modules_per_stack=self.problem.cells
        )
        return npp.from_nni(made)

    def ruled(self, rules: Mapping[str, Any]) -> Any:
        """The space with rules for shared layers, where there are any."""
        return self.space.with_rules(dict(rules)) if rules else self.space

    @cached_property
    def train(self) -> SmallImages:
        """What is learned."""
        return SmallImages(self.problem, "train")

    @cached_property
    def valid(self) -> SmallImages:
        """What inherited weights are judged by."""
        return SmallImages(self.problem, "valid")

    @cached_property
    def test(self) -> SmallImages:
        """What networks that were trained alone are judged by; no search sees it."""
        return SmallImages(self.problem, "test")

    def choices(self, architecture: Architecture) -> tuple[int, ...]:
        """The subnet: one choice per choice block."""
        return tuple(self.space.decisions.choices(architecture))

    def architecture(self, choices: tuple[int, ...]) -> Architecture:
        """The other way."""
        return tuple(self.space.decisions.drawn(choices))


@cache
def setting(problem: Problem) -> Setting:
    """The setting of a problem."""
    return Setting(problem)

"""A WRITE that fails among others is told of by its own layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp


class Failing(torch.optim.SGD):
    """Steps no layer of five inputs."""

    def step(self, closure=None):
        if any(each.shape[-1] == 5 for group in self.param_groups for each in group["params"]):
            raise ArithmeticError("no step for five inputs")
        super().step(closure)


def _batches(seed, step):
    generator = torch.Generator().manual_seed(seed * 1000 + step)
    inputs = torch.randn(2, 4, generator=generator)
    return {"input": inputs, "target": torch.randint(3, (2,), generator=generator)}


def test_a_failing_write_is_told_of_by_its_own_layer(tmp_path):
    sizes = [(4, 4), (4, 5), (5, 4), (4, 3)]
    blocks = [npp.Block([lambda a=a, b=b: nn.Linear(a, b)]) for a, b in sizes]
    with pytest.raises(npp.NaspipeError, match=r"WRITE of block 2 "):
        npp.train(
            npp.Space("four", blocks), _batches, nn.CrossEntropyLoss(), optimizer=Failing, lr=0.1,
            steps=2, seed=1, stages=1, run_dir=tmp_path / "run",
        )  # fmt: skip

"""A block that runs out of device memory: the first try's tensors are gone before the second."""

from __future__ import annotations

import weakref

import torch
from torch import nn

import naspipe as npp
from naspipe.worker.blocks.compute import StageCompute
from tests.equivalence import spaces

held: list[weakref.ref[torch.Tensor]] = []


class ShortOnce(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        hidden = self.linear(x)
        if not held:
            held.append(weakref.ref(hidden))
            raise torch.OutOfMemoryError("injected")
        return hidden


def test_the_first_try_holds_no_memory_when_the_second_begins(tmp_path, monkeypatch, computes_here):
    freed = []
    usual = StageCompute.free_memory

    def free_memory(compute):
        freed.append(held[0]() is None)
        usual(compute)

    monkeypatch.setattr(StageCompute, "free_memory", free_memory)
    held.clear()
    space = npp.Space("short", [npp.Block([ShortOnce]), npp.Block([lambda: nn.Linear(16, 10)])])
    run = npp.train(space, spaces.vectors, nn.CrossEntropyLoss(), steps=2, run_dir=tmp_path / "run")
    assert freed == [True]
    assert run.manifest["measured"]["stages"][0]["memory_retries"] == 1

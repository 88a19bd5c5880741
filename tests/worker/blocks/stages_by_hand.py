"""Two stages in this process, whose blocks and WRITEs are called by hand."""

from __future__ import annotations

import torch

from naspipe.config.ids import FIRST_STREAM, INITIAL
from naspipe.engine.commands import WriteLayer
from naspipe.engine.events import TaskKind
from naspipe.worker.blocks.compute import StageCompute
from naspipe.worker.placement import Placement
from tests.oracle import bits
from tests.worker.small_parts import layer, workload
from tests.worker.tasks import task

FORWARD, BACKWARD = TaskKind.FORWARD, TaskKind.BACKWARD


class Stages:
    """Both stages' computes in this process, and what each hands the other."""

    def __init__(self, work=None, placements=None):
        places = placements or [Placement(torch.device("cpu")) for _ in range(2)]
        self.computes = [StageCompute([work or workload()], place) for place in places]
        self.versions = {}

    def of(self, block):
        return self.computes[block // 2]

    def forward(self, y, blocks=range(4)):
        for block in blocks:
            if block == 2:
                passed = self.computes[0].output(task(y, FORWARD, 0))
                self.computes[1].accept(task(y, FORWARD, 1), passed)
            used = layer(y, block)
            version = self.versions.get(used, INITIAL)
            result = self.of(block).run_block(
                task(y, FORWARD, block // 2), used, version, used.candidate
            )
            assert (result is None) == (block < 3)
        return result

    def backward(self, y, blocks=range(3, -1, -1)):
        for block in blocks:
            if block == 1:
                passed = self.computes[1].output(task(y, BACKWARD, 1))
                self.computes[0].accept(task(y, BACKWARD, 0), passed)
            used = layer(y, block)
            version = self.versions.get(used, INITIAL)
            self.of(block).run_block(task(y, BACKWARD, block // 2), used, version, used.candidate)

    def write(self, y):
        for block in range(4):
            used = layer(y, block)
            base = self.versions.get(used, INITIAL)
            self.of(block).updates.write(WriteLayer(used, y, base, False))
            self.versions[used] = y

    def step(self, y):
        result = self.forward(y)
        self.backward(y)
        self.write(y)
        for compute in self.computes:
            compute.retire(FIRST_STREAM, y)
        return result.value

    def tensors(self):
        found = {}
        for compute in self.computes:
            for (_, block, candidate), stored in compute.stores[0].items():
                for name, value in stored.tensors():
                    found[block, candidate, name] = bits(value)
        return found


def expected(oracle):
    return {key: bits(value) for key, value in oracle.tensors().items()}

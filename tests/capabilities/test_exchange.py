"""An exchange with its gate: gradients divided by how many layers of the step have any."""

from __future__ import annotations

import pytest
from torch import nn

import naspipe as npp
from naspipe.config.ids import AccessKind
from naspipe.config.wiring import Wiring
from naspipe.engine.gates import StepGate
from naspipe.worker.blocks.updates import register_exchange
from tests.capabilities import plain, simulated
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits

SEED, LOSS, COUNT = 1, nn.CrossEntropyLoss(), "count"


class CountExchange:
    def contribution(self, stream, gradients):
        return {"layers": sum(1 for own in gradients.values() if own)}

    def apply(self, layer, gradients, contributions):
        total = sum(told["layers"] for told in contributions.values())
        for gradient in gradients.values():
            gradient.div_(total)


@pytest.fixture(autouse=True)
def registered(registries):
    register_exchange(COUNT, lambda steps: StepGate(steps, COUNT), lambda recipes: CountExchange())


def step(loop, y, chain, batch):
    used, state = plain.modules_of(loop, y, chain), ()
    for (block, _), module in used.items():
        state = plain.call(loop, y, block, module, state, batch)
    loss = LOSS(*state, batch["target"])
    loss.backward()
    found = [[p.grad for p in m.parameters() if p.grad is not None] for m in used.values()]
    for gradient in (g for own in found for g in own):
        gradient.div_(sum(map(bool, found)))
    loop.losses.append(loss.detach())
    loop.write(y, used)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_the_bits_are_those_of_the_plain_loop(tmp_path, stages):
    workload = npp.workload(
        spaces.mixed(), spaces.vectors, LOSS, steps=14, seed=SEED, lr=0.5, optimizer="SGD"
    )
    (run,) = npp.train_together(
        [workload], npp.Execution(stages=stages), tmp_path / "run", exchanges=[COUNT]
    )
    assert_same_bits(run, plain.train(run, spaces.vectors, step, seed=SEED, lr=0.5))


def test_no_write_begins_before_every_stage_has_told():
    stream = simulated.subnets(0)
    for seed in range(5):
        wiring = Wiring(exchanges=(COUNT,))
        accesses = simulated.run(
            [stream], lambda s: (0, 2, 4, 6), wiring=wiring, seed=seed, stages=3
        )
        for y in range(len(stream)):
            own = [access for access in accesses if access.sequence_id == y]
            told = max(a.end_ns for a in own if a.kind is AccessKind.BACKWARD)
            assert all(a.start_ns >= told for a in own if a.kind is AccessKind.WRITE)

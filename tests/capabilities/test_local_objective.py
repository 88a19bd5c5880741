"""A loss in block 3 of a chain: its backward begins there, and nothing behind it reaches it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.ids import AccessKind
from naspipe.config.wiring import StreamWiring, Wiring
from naspipe.store.losses import read_losses
from scripts.paper.costs import RandomCosts
from tests.capabilities import plain, simulated
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits
from tests.oracle import bits

CUT, SEED, LOSS = 3, 1, nn.CrossEntropyLoss()


class Local:
    fields = ("target",)

    def __call__(self, outputs, lessons, fields):
        return functional.cross_entropy(outputs[0] * 0.5, *fields)


def plain_step(local_losses):
    def step(loop, y, chain, batch):
        used, state = plain.modules_of(loop, y, chain), ()
        for (block, _), module in used.items():
            state = plain.call(loop, y, block, module, state, batch)
            if block == CUT:
                local = functional.cross_entropy(state[0] * 0.5, batch["target"])
                local.backward()
                local_losses.append(local.detach())
                state = tuple(t.detach() for t in state)
        loss = LOSS(*state, batch["target"])
        loss.backward()
        loop.losses.append(loss.detach())
        loop.write(y, used)

    return step


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_bits_are_those_of_the_plain_loop(tmp_path, stages):
    workload = npp.workload(
        spaces.mixed(), spaces.vectors, LOSS, steps=16, seed=SEED, lr=0.05, optimizer="SGD"
    )
    workload = replace(workload, objectives={CUT: Local()})
    (run,) = npp.train_together([workload], npp.Execution(stages=stages), tmp_path / "run")
    locals_: list = []
    assert_same_bits(run, plain.train(run, spaces.vectors, plain_step(locals_), seed=SEED))
    found = [int(loss.bits, 16) for loss in read_losses(run.directory.losses_of(1))]
    assert found == [int.from_bytes(bits(loss)[2], "little") for loss in locals_]


def test_its_backward_needs_nothing_from_behind():
    """Block 5 waits for a field that comes when all else is over; block 3 is long written then."""

    class Late(RandomCosts):
        def message_ns(self, receiver):
            return 10_000_000

    own = StreamWiring(objectives=(CUT,), late_fields=((5, "target"),))
    stream = simulated.subnets(0, count=1)
    accesses = simulated.run(
        [stream], lambda subnet: (0, 6), wiring=Wiring(streams=(own,)), stages=1, costs=Late(0)
    )
    late = [a for a in accesses if a.start_ns >= 10_000_000]
    assert {(a.layer.block, a.kind) for a in late} == {
        (block, kind) for block in (4, 5) for kind in AccessKind
    } - {(4, AccessKind.FORWARD)}


@pytest.mark.parametrize("bounds", [(0, 3, 6), (0, 4, 6), (0, 2, 6), (0, 5, 6)])
def test_its_log_is_in_causal_order(bounds):
    wiring = Wiring(streams=(StreamWiring(objectives=(1, CUT)),))
    for seed in range(5):
        simulated.run([simulated.subnets(0)], lambda subnet: bounds, wiring=wiring, seed=seed)

"""Batch fields that are asked for when a subnet is admitted, and come from a thread later."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace

import pytest
from torch import nn

import naspipe as npp
from naspipe.config.ids import AccessKind
from naspipe.config.wiring import StreamWiring, Wiring
from tests.capabilities import simulated
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, plain_loop

SEED, LOSS = 1, nn.CrossEntropyLoss()


class SlowSource:
    """Answers one request after the other; later batches now and then before earlier ones."""

    def __init__(self, name, wake):
        self._name, self._wake = name, wake
        self._asked, self._come = queue.LifoQueue(), queue.SimpleQueue()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self):
        while (batch := self._asked.get()) is not None:
            time.sleep(0.002)
            self._come.put((batch, spaces.vectors(SEED, batch)[self._name]))
            self._wake()

    def request(self, batch):
        self._asked.put(batch)

    def take(self):
        return [self._come.get() for _ in range(self._come.qsize())]

    def close(self):
        self._asked.put(None)
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("name", ["target", "input"])
@pytest.mark.parametrize("stages", [1, 2])
def test_the_bits_are_those_of_the_plain_loop(tmp_path, stages, name):
    space = spaces.mixed()
    workload = npp.workload(
        space, spaces.vectors, LOSS, steps=14, seed=SEED, lr=0.05, optimizer="SGD"
    )
    workload = replace(workload, field_sources={name: lambda seat: SlowSource(name, seat.wake)})
    (run,) = npp.train_together([workload], npp.Execution(stages=stages), tmp_path / "run")
    loop = plain_loop(space, spaces.vectors, LOSS, run, seed=SEED, optimizer="SGD", lr=0.05)
    assert_same_bits(run, loop)


def test_only_the_block_that_needs_it_waits():
    wiring = Wiring(streams=(StreamWiring(late_fields=((5, "target"),)),))
    stream = simulated.subnets(0)
    for seed in range(3):
        accesses = simulated.run([stream], lambda subnet: (0, 3, 6), wiring=wiring, seed=seed)
        forwards = [a for a in accesses if a.kind is AccessKind.FORWARD]
        assert len(forwards) == 6 * len(stream)

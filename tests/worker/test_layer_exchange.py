"""A layer goes to another stage and comes back: every bit, its version, and its memory."""

from __future__ import annotations

import pytest
import torch

from naspipe.engine.commands import PushVersion
from naspipe.engine.events import VersionArrived
from naspipe.machine.out_of_memory import MemoryRetry
from naspipe.wire.messages import read_message, stage_frames
from naspipe.wire.transport import Sending
from naspipe.worker.job import OnePipeline
from naspipe.worker.layer_exchange import LayerExchange
from naspipe.worker.layers.layer_store import LayerStore
from naspipe.worker.placement import Placement
from tests.worker.checkpoints.bench import held
from tests.worker.small_parts import SEED, layer, space, workload

LAYER = layer(0, 1)


class Notes(Placement):
    """Notes what it is told of layers that come and go."""

    def __init__(self):
        super().__init__(torch.device("cpu"))
        self.told = []

    def leave(self, layer, is_sent):
        self.told.append(("leave", layer, is_sent()))

    def expect(self, layer):
        self.told.append(("expect", layer))

    def settle(self, layer):
        self.told.append(("settle", layer))


class Stage:
    """One stage's layers; what it sends waits in a list."""

    def __init__(self, number):
        self.store = LayerStore(space(), SEED, workload().recipe)
        self.placement, self.number, self.sent = Notes(), number, []
        retry = MemoryRetry(lambda: None)
        self.exchange = LayerExchange([self.store], self.placement, self, OnePipeline(2), retry)

    def send(self, worker, message):
        """As a transport, but for the sockets."""
        assert worker == 1 - self.number
        frames = stage_frames(message)
        self.sent.append([bytes(frame) for frame in frames])
        return Sending(sum(map(len, self.sent[-1])), lambda: True)

    def push(self, version):
        self.exchange.push(PushVersion(LAYER, version, 1 - self.number))

    def take(self, other):
        header, *frames = other.sent.pop()
        return self.exchange.take(read_message(header, frames))

    def write(self, subnet):
        stored = self.store[LAYER]
        gradients = {name: torch.ones_like(p) for name, p in stored.parameters.items()}
        stored.write(gradients, subnet, stored.version, False, int(subnet), 0.1)


@pytest.fixture
def stages():
    return Stage(0), Stage(1)


def test_there_and_back_it_is_the_layer_that_it_was(stages):
    one, other = stages
    twin = Stage(0)
    for stage, y in ((one, 0), (other, 3), (one, 5)):
        stage.write(y)
        twin.write(y)
        expected = held(twin.store[LAYER])
        assert held(stage.store[LAYER]) == expected
        stage.push(y)
        receiver = other if stage is one else one
        event = receiver.take(stage)
        assert isinstance(event, VersionArrived)
        assert (event.layer, event.version) == (LAYER, y)
        assert held(receiver.store[LAYER]) == expected and receiver.store[LAYER].version == y
        assert stage.store.items() == [], "it is on one stage at a time"


def test_both_placements_are_told_in_order(stages):
    one, other = stages
    one.write(0)
    one.push(0)
    other.take(one)
    assert one.placement.told == [("leave", LAYER, True)]
    assert other.placement.told == [("expect", LAYER), ("settle", LAYER)]


def test_what_was_handed_over_is_counted(stages):
    one, other = stages
    one.write(0)
    one.push(0)
    first = one.exchange.measured["pushed_bytes"]
    assert first == sum(map(len, one.sent[0])) > 0
    other.take(one)
    assert one.exchange.measured["pushed_bytes"] == first
    assert set(other.exchange.measured.values()) == {0}

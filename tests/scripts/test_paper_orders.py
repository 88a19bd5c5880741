"""The order ``model-parallel``: one stage works at a time."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from naspipe.config.ids import AccessKind, StreamId, Subnet
from naspipe.config.steps import Steps
from naspipe.config.wiring import StreamWiring, Tap, TapRole, Wiring
from scripts.paper import orders
from scripts.paper.costs import RandomCosts
from scripts.teachers_simulated import Setting, utilisation
from tests.capabilities import simulated

BLOCKS, PASSES = 6, 3


@pytest.fixture(scope="module", autouse=True)
def registered(registries):
    orders.register()


class FreeMessages(RandomCosts):
    """Random times of accesses; messages take none."""

    def message_ns(self, receiver):
        return 0


def streams(passes, count=8):
    """A supernet and its teacher of one subnet, one step after the other."""
    draw = random.Random(1)
    student = [
        Subnet(StreamId(0), y, tuple(draw.randrange(2) for _ in range(BLOCKS)))
        for y in range(count * passes)
    ]
    return [student, [Subnet(StreamId(1), y, (0,) * 4) for y in range(count * passes)]]


def joined(role=TapRole.LESSON, sink=BLOCKS - 1, pairs=None):
    tap = Tap((1, 3), (0, sink), role, pairs)
    return Wiring(streams=(StreamWiring(), StreamWiring(is_trained=False, rank=1)), taps=(tap,))


def cut(subnet):
    return (0, 2, 4, 6) if subnet.stream == 0 else (0, 1, 3, 4)


def run(order, passes=PASSES, wiring=None, seed=0):
    return simulated.run(
        streams(passes), cut, wiring=wiring or joined(), order=order, stages=3,
        steps=Steps(passes, draws_each=passes > 1), costs=FreeMessages(seed),
    )  # fmt: skip


def at_once(accesses):
    """Pairs of accesses on two stages at one time; what is written may be, at a step's end."""
    spans = sorted(
        (each.start_ns, each.end_ns, each.stage)
        for each in accesses
        if each.kind is not AccessKind.WRITE and each.end_ns > each.start_ns
    )
    return [(a, b) for a, b in pairwise(spans) if b[0] < a[1] and a[2] != b[2]]


@pytest.mark.parametrize("pairs", [None, ((0, 1), (1, 2), (2, 0))])
def test_one_stage_works_at_a_time(pairs):
    for seed in range(8):
        wiring = joined(pairs=pairs)
        assert at_once(run("model-parallel", wiring=wiring, seed=seed)) == []
        assert at_once(run("gpipe", wiring=wiring, seed=seed))


def test_plain_streams_and_single_passes():
    for passes in (1, PASSES):
        own = streams(passes)[:1]
        how = {"order": "model-parallel", "stages": 3, "steps": Steps(passes)}
        assert at_once(simulated.run(own, cut, costs=FreeMessages(2), **how)) == []


def test_a_stream_that_is_fed_early_is_not_waited_for():
    """Its first block takes from the teacher's last stage: waiting for it would be for ever."""
    assert run("model-parallel", wiring=joined(TapRole.INPUT, sink=0))


@pytest.mark.parametrize("stages", [2, 4])
def test_one_of_the_stages_is_busy(stages):
    for lag in (0, 1, None):
        setting = Setting(stages=stages, batches=3, views=2, lag=lag, order="model-parallel")
        assert utilisation(setting) == pytest.approx(1 / stages, abs=1e-3) == setting.formula


def test_a_broken_turn_is_seen(monkeypatch):
    monkeypatch.setattr("scripts.paper.orders._Turn.is_open", lambda *_: True)
    assert any(at_once(run("model-parallel", seed=seed)) for seed in range(4))

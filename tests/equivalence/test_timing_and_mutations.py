"""Delays never change a bit; a broken rule always turns something red."""

from __future__ import annotations

import random
import time

import pytest
from torch import nn

import naspipe as npp
from naspipe.api import training
from naspipe.config.errors import InvariantError, StageFailedError
from naspipe.engine.builder import build_controller
from naspipe.engine.versions import VersionBook
from naspipe.store.access_log import read_access_log
from naspipe.store.compare import RecordedRun
from naspipe.store.event_log import read_events
from naspipe.wire.transport import ZmqTransport
from naspipe.worker import stage_process as connections
from naspipe.worker.blocks import segment
from naspipe.worker.blocks.compute import StageCompute
from naspipe.worker.layers.stored_layer import StoredLayer
from tests.engine.replay import replay
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, plain_loop
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()


def train(path, space, stages, steps=24, **execution):
    return npp.train(
        space, spaces.vectors, LOSS, steps=steps, seed=5, optimizer="Adam", lr=0.01,
        stages=stages, run_dir=path, execution=execution,
    )  # fmt: skip


def inject_delays(monkeypatch, seed):
    """Hold messages back and let younger ones pass; stretch the compute of some blocks."""

    class Delayed(ZmqTransport):
        def __init__(self, stage, *arguments):
            super().__init__(stage, *arguments)
            self.random, self.held = random.Random(seed * 16 + stage), []

        def receive(self, timeout_seconds):
            deadline = time.monotonic() + timeout_seconds
            while True:
                while message := super().receive(0):
                    due = time.monotonic() + self.random.choice([0, 0.001, 0.004, 0.012])
                    self.held.append((due, message))
                self.random.shuffle(self.held)
                for item in self.held:
                    if item[0] <= time.monotonic():
                        self.held.remove(item)
                        return item[1]
                if time.monotonic() >= deadline:
                    return None
                time.sleep(0.0005)

    run_block = StageCompute.run_block

    def slow(compute, task, layer, version, option):
        draw = random.Random(f"{seed}/{task}/{layer}")
        time.sleep(draw.choice([0, 0, 0, 0.002]))
        return run_block(compute, task, layer, version, option)

    monkeypatch.setattr(connections, "ZmqTransport", Delayed)
    monkeypatch.setattr(StageCompute, "run_block", slow)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    space = spaces.mixed(end=npp.Lag(2))
    run = train(tmp_path_factory.mktemp("alone") / "run", space, 1)
    oracle = plain_loop(space, spaces.vectors, LOSS, run, seed=5, optimizer="Adam", lr=0.01)
    assert_same_bits(run, oracle)
    return space, oracle


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("seed", [0, 1, *map(long, (2, 3, 4))])
def test_delays_never_change_a_bit(tmp_path, monkeypatch, expected, stages, seed):
    inject_delays(monkeypatch, seed)
    space, oracle = expected
    assert_same_bits(train(tmp_path / "run", space, stages), oracle)


def test_dropping_a_dependency_is_refused_by_the_version_check(tmp_path, monkeypatch):
    """Without the wait, the layer store refuses the read: the second, independent check."""
    exists = VersionBook.exists
    monkeypatch.setattr(
        VersionBook, "exists",
        lambda book, layer, version: layer.block == 5 or exists(book, layer, version),
    )  # fmt: skip
    with pytest.raises(StageFailedError, match=r"version .* was asked for"):
        train(tmp_path / "run", narrow(), 2, steps=60)


def narrow():
    """Few candidates, so that neighbours conflict."""
    return npp.Space("narrow", [
        npp.Shared("stem", lambda: nn.Linear(16, 24), rule=npp.Lag(6)),
        *(npp.Block([lambda: spaces.Residual(24, nn.LayerNorm)] * 6) for _ in range(4)),
        npp.Block([lambda: spaces.Residual(24, nn.LayerNorm)]),
        npp.Block([lambda: nn.Linear(24, 10)]),
    ])  # fmt: skip


def test_dropping_dependency_and_version_check_changes_bits_or_is_seen(tmp_path, monkeypatch):
    """With both gone the run goes through, and the log's invariants and the bits show it."""
    exists, bind, write = VersionBook.exists, StoredLayer.bind, StoredLayer.write
    monkeypatch.setattr(
        VersionBook, "exists",
        lambda book, layer, version: layer.block == 5 or exists(book, layer, version),
    )  # fmt: skip

    def careless_bind(layer, version):
        return bind(layer, layer.version if layer.label == "4.0" else version)

    monkeypatch.setattr(StoredLayer, "bind", careless_bind)
    monkeypatch.setattr(StoredLayer, "write", write)
    with pytest.raises(InvariantError, match="rules of the policy csp broken"):
        train(tmp_path / "run", narrow(), 2, steps=60, recompute=True)


def test_unkeyed_randomness_changes_bits(tmp_path, monkeypatch, expected):
    """Draws in call order instead of keyed ones: losses must differ from the oracle's."""
    space, oracle = expected
    seeds = iter(range(10**6))
    seed_draws = segment.seed_draws
    monkeypatch.setattr(segment, "seed_draws", lambda seed: seed_draws(next(seeds)))
    monkeypatch.setattr(training, "check_spaces", lambda *_: [])  # which finds it before the run
    run = train(tmp_path / "run", space, 2)
    with pytest.raises(AssertionError, match="first loss that differs: subnet 0"):
        assert_same_bits(run, oracle)


@pytest.mark.parametrize("stages", [1, 3])
def test_recorded_events_replay_to_the_same_commands(tmp_path, stages):
    space = spaces.mixed()
    run = train(tmp_path / "run", space, stages, record_events=True)
    order = run.manifest["execution"]["order"]
    rules = RecordedRun(run.directory.path).labels.rules
    for stage in range(stages):
        controller = build_controller(stage, [rules], order=order, starts_partly_clear=True)
        commands = replay(controller, read_events(run.directory.events_log(stage)))
        accesses = [command.access for command in commands if hasattr(command, "access")]
        assert accesses == read_access_log(run.directory.access_log(stage))
        assert len(accesses) > 0

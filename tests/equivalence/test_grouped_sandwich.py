"""A sandwich on groups: what the first pass puts out teaches the passes of every other group."""

from __future__ import annotations

import pytest
from torch import nn

import naspipe as npp
from naspipe.checks.sketched import buffered_layers
from naspipe.config.ids import LayerId
from naspipe.config.steps import recorded_steps
from naspipe.config.wiring import CHAIN
from naspipe.engine.invariants import violations
from naspipe.store.access_log import read_run_accesses
from naspipe.store.compare import RecordedRun
from naspipe.streams.stream_file import read_stream
from naspipe.worker.blocks.compute import StageCompute
from tests.equivalence import elastic_spaces as elastic
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, check, plain_loop, restless
from tests.equivalence.test_passes import assert_replays
from tests.faults.helpers import Calm, Ends, interrupt, kill
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()
ALL = {"clip_global_norm": 1.0, "ema": 0.9}
LEAST = {"memory_budget": "0.001x", "recompute": True}


def train(tmp_path, space, data, stages, execution, passes="sandwich:2", **more):
    return check(
        tmp_path, space, data, LOSS, stages=stages, steps=6, lr=0.02, options={"momentum": 0.9},
        recipe={"passes": passes, **more}, execution={"groups": 2, **execution},
    )  # fmt: skip


def assert_logged(run):
    """All accesses are there, and none before what it needs: no pass ends untaught."""
    recorded = RecordedRun(run.directory.path)
    stream = read_stream(run.directory.stream)
    chains = [run.space.chain(choices) for choices in stream]
    subnets = [run.space.subnet(0, y, chain) for y, chain in enumerate(chains)]
    steps = recorded_steps(recorded.manifest["definition"]["recipe"])
    buffered = {LayerId(0, *place) for place in buffered_layers(run.space)}
    accesses = read_run_accesses(run.directory.path)
    assert {access.stage for access in accesses} == set(range(recorded.num_stages))
    found = violations(accesses, recorded.labels.rules, subnets, steps=steps, buffered=buffered)
    assert list(found) == []


@pytest.mark.parametrize(
    ("groups", "stages", "passes", "more", "execution"),
    [
        (2, (1, 2), "sandwich:2", {}, {"record_events": True}),
        (2, (1, 2), "sandwich:2", ALL, LEAST),  # the least that works
        long(3, (1,), "sandwich:1", ALL, {"window": 3}),
        (4, (1,), "sandwich:2", {"reduction": "tree"}, {"window": 16}),
    ],
)
def test_bits_of_the_plain_loop(tmp_path, monkeypatch, groups, stages, passes, more, execution):
    """Batch normalisation, dropout, absent gradients, a lagging stem; layers on the move."""
    restless(monkeypatch)
    how = {"groups": groups, **execution}
    for run in train(tmp_path, spaces.mixed(), spaces.vectors, stages, how, passes, **more):
        assert_logged(run)
        if "record_events" in execution:
            steps = recorded_steps(run.manifest["definition"]["recipe"])
            assert_replays(run, RecordedRun(run.directory.path).num_stages, steps)


@pytest.mark.parametrize(
    ("make", "data", "stages", "execution"),
    [
        long(elastic.linears, elastic.vectors, (1, 2), {}),
        (elastic.images, elastic.maps, (2,), LEAST),
    ],
)
def test_elastic_layers(tmp_path, make, data, stages, execution):
    for run in train(tmp_path, make(), data, stages, execution):
        assert_logged(run)


def test_it_goes_on_with_other_groups(tmp_path):
    def train(data, groups, stages, **kw):
        return npp.train(
            elastic.linears(), data, LOSS, steps=10, seed=1, lr=0.05, stages=stages,
            recipe={"passes": "sandwich:2", **ALL}, run_dir=tmp_path / "run",
            execution={"checkpoint_every": 2, "window": 8, "groups": groups}, **kw,
        )  # fmt: skip

    with pytest.raises(npp.NaspipeError):
        train(Ends(elastic.vectors, 4, kill, tmp_path / "first"), 2, 2)
    with pytest.raises(npp.NaspipeError):
        train(Ends(elastic.vectors, 7, interrupt, tmp_path / "second"), 4, 1, resume=True)
    run = train(Calm(elastic.vectors), 2, 1, resume=True)
    first = run.manifest["life"]["first"][0]
    assert first > 0 and first % 4 == 0
    oracle = plain_loop(
        run.space, elastic.vectors, LOSS, run, seed=1, optimizer="SGD", lr=0.05,
        passes="sandwich:2", **ALL,
    )  # fmt: skip
    assert_same_bits(run, oracle)


def stale(output):
    """What the step before had as its first pass's output is taught again."""
    known = {}

    def broken(compute, task, name=CHAIN):
        found, step = output(compute, task, name), task.sequence_id // 4
        if name == CHAIN:
            return found
        known[step] = found
        return known.get(step - 1, found)

    return broken


def silent(output):
    """Nothing is taught: the others learn the targets."""
    return lambda compute, task, name=CHAIN: output(compute, task) if name == CHAIN else ()


@pytest.mark.parametrize("broken", [stale, silent])
def test_what_is_taught_makes_a_difference(tmp_path, monkeypatch, broken):
    monkeypatch.setattr(StageCompute, "output", broken(StageCompute.output))
    with pytest.raises(AssertionError, match="differ"):
        train(tmp_path, spaces.mixed(), spaces.vectors, (1,), {})

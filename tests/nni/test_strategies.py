"""NNI's strategies drive training: one stream and the same bits on any number of stages."""

from __future__ import annotations

import threading

import nni.nas.nn.pytorch as nas
import pytest
import torch
from nni.nas.strategy import PolicyBasedRL, Random, RegularizedEvolution
from nni.nas.strategy.base import Strategy
from numpy.random import RandomState
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.nni.strategies import STRATEGIES, adopt
from naspipe.streams.feedback import FeedbackLoop
from naspipe.streams.stream_file import read_stream
from tests.equivalence.harness import assert_same_bits, plain_loop
from tests.nni.spaces import Residual, batches, make
from tests.thinned import long

LOSS = torch.nn.CrossEntropyLoss()
DELAY, STEPS = 5, 24


class Batches(Strategy):
    """A user's own: four random models at a time, then the best one of them again."""

    def __init__(self):
        super().__init__()
        self.random = RandomState(1)

    def _run(self):
        while self.engine.budget_available():
            models = [self.model_space.random(random_state=self.random) for _ in range(4)]
            self.engine.submit_models(*models)
            self.engine.wait_models(*models)
            best = max(models, key=lambda model: model.metric)
            self.engine.submit_models(self.model_space.freeze(best.sample))


class Wide(nas.ModelSpace):
    """Large enough for strategies that never propose a subnet twice."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=4, padding=1)
        self.blocks = nn.Sequential(
            *(
                nas.LayerChoice(
                    {str(k): Residual(8, k) for k in (1, 3, 5)} | {"none": nn.Identity()},
                    label=f"block{number}",
                )
                for number in range(6)
            )
        )
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


@pytest.fixture(scope="module")
def space():
    torch.manual_seed(7)
    return npp.from_nni(Wide())


def train(space, sampler, stages, path):
    return npp.train(
        space, batches, LOSS, sampler=sampler, steps=STEPS, seed=3, lr=0.05, stages=stages,
        run_dir=path / f"run-{stages}", recipe={"feedback_delay": DELAY},
    )  # fmt: skip


def sampler_of(name):
    quick = {"batch_size": 64, "repeat": 4, "update_times": 3}
    small = {"population_size": 6, "sample_size": 3, "dedup": False, "seed": 1}
    return {
        "RegularizedEvolution": RegularizedEvolution(**small),
        "PolicyBasedRL": PolicyBasedRL(samples_per_update=8, update_kwargs=quick),
        "Batches": Batches(),
    }.get(name, f"nni:{name}")


RUNS = [*zip([*STRATEGIES, "Batches"], (2, 4, 2, 4, 2, 4), strict=True)]
FEW = ("PolicyBasedRL", "RegularizedEvolution", "Batches")
"""Others only with --all."""


@pytest.mark.parametrize(("name", "stages"), [run if run[0] in FEW else long(*run) for run in RUNS])
def test_streams_and_bits(space, tmp_path, name, stages):
    """How the stages are told of subnets is the same for all strategies."""
    runs = [train(space, sampler_of(name), number, tmp_path) for number in (1, stages)]
    streams = [read_stream(run.directory.stream) for run in runs]
    assert streams[0] == streams[1]
    assert len(set(streams[0])) > 4
    oracle = plain_loop(space, batches, LOSS, runs[0], seed=3, optimizer="SGD", lr=0.05)
    for run in runs:
        assert_same_bits(run, oracle)
    assert not [thread for thread in threading.enumerate() if thread.name == "nni-strategy"]


@pytest.mark.parametrize("name", ["RegularizedEvolution", "TPE", "Batches"])
def test_scores_matter_and_outer_draws_do_not(space, name):
    """Fed the same scores the stream is the same, whatever else draws; other scores change it."""

    def stream(sign, disturb):
        strategy = adopt(sampler_object(name), space, 3)
        loop = FeedbackLoop(strategy, DELAY, 40)
        found = loop.start()
        for y in range(30):
            if disturb:
                torch.rand(3)
            found += loop.take(y, sign * sum(found[y]))
        strategy.close()
        return found

    def sampler_object(name):
        from naspipe.nni.strategies import named_strategy

        sampler = sampler_of(name)
        return named_strategy(name, 3, DELAY, 40) if isinstance(sampler, str) else sampler

    first = stream(1.0, disturb=False)
    assert stream(1.0, disturb=True) == first
    assert stream(-1.0, disturb=False) != first


def test_an_exhausted_strategy_is_said(tmp_path):
    with pytest.raises(ConfigError, match="no subnet that it did not propose before"):
        npp.train(
            npp.from_nni(make("own")), batches, LOSS, sampler=Random(dedup=True, seed=1),
            steps=500, stages=1, run_dir=tmp_path / "run",
        )  # fmt: skip


def test_a_space_of_ones_own_and_an_unknown_name(tmp_path):
    block = npp.Block([torch.nn.Identity, lambda: torch.nn.Linear(4, 4)])
    own = npp.Space("own", [*[block] * 8, npp.Shared("head", lambda: torch.nn.Linear(4, 3))])

    def data(seed, sequence_id):
        draw = torch.Generator().manual_seed(seed + sequence_id)
        return {
            "input": torch.randn(5, 4, generator=draw),
            "target": torch.randint(3, (5,), generator=draw),
        }

    run = npp.train(own, data, LOSS, sampler="nni:TPE", steps=20, run_dir=tmp_path / "run")
    assert len(set(read_stream(run.directory.stream))) > 1
    with pytest.raises(ConfigError, match="nni:NAME with Random"):
        npp.train(own, data, LOSS, sampler="nni:Magic", steps=2, run_dir=tmp_path / "magic")

"""Streams that a strategy proposes from the losses: the same on any number of stages."""

from __future__ import annotations

import pytest
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.search.strategies import Evolution
from naspipe.streams.stream_file import read_stream
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, check, plain_loop, restless
from tests.faults.helpers import Calm, Ends, fail
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()
DELAY, STEPS = 4, 30
RECIPE = {"feedback_delay": DELAY}


class Greedy:
    """Its next subnet is a function of all that it was told, so a single score matters."""

    def __init__(self, counts):
        self.counts, self.told = counts, []

    def propose(self, sequence_id):
        seen = sum(int(abs(score) * 1e6) * (place + 1) for place, score in self.told)
        return [(seen + sequence_id * (block + 1)) % n for block, n in enumerate(self.counts)]

    def observe(self, sequence_id, score):
        assert sequence_id == len(self.told)
        self.told.append((sequence_id, score))


def expected_stream(strategy, losses, delay):
    """The rule in a few lines: subnet y is proposed when losses up to y - 1 - delay are told."""
    stream = []
    for y in range(len(losses)):
        if y > delay:
            strategy.observe(y - 1 - delay, -losses[y - 1 - delay])
        stream.append(tuple(strategy.propose(y)))
    return stream


def stream_of(run):
    return read_stream(run.directory.stream)


def test_bits_and_stream(tmp_path, monkeypatch):
    restless(monkeypatch)
    space = spaces.mixed()
    runs = check(
        tmp_path, space, spaces.vectors, LOSS, stages=(1, 2, 4), steps=STEPS,
        sampler=Greedy(space.candidate_counts), recipe=RECIPE,
    )  # fmt: skip
    rule = expected_stream(Greedy(space.candidate_counts), runs[0].losses, DELAY)
    assert [stream_of(run) for run in runs] == [rule] * 3


@pytest.mark.parametrize("stages", [long(1), 3])
def test_with_swapping_and_recompute(tmp_path, stages):
    space = spaces.mixed()
    (run,) = check(
        tmp_path, space, spaces.vectors, LOSS, stages=(stages,), steps=STEPS, sampler="evolution",
        optimizer="Adam", recipe={"feedback_delay": 2},
        execution={"memory_budget": "0.1x", "recompute": True},
    )  # fmt: skip
    own = Evolution(space.candidate_counts, 1)
    assert stream_of(run) == expected_stream(own, run.losses, 2)


def test_a_recorded_stream_is_replayed(tmp_path):
    space = spaces.mixed()
    how = {"steps": STEPS, "seed": 1, "lr": 0.05, "stages": 2, "recipe": RECIPE}
    first = npp.train(
        space, spaces.vectors, LOSS, sampler=Greedy(space.candidate_counts),
        run_dir=tmp_path / "first", **how,
    )  # fmt: skip
    again = npp.train(
        space, spaces.vectors, LOSS, sampler=f"file:{first.directory.stream}",
        run_dir=tmp_path / "again", **how,
    )  # fmt: skip
    assert again.losses == first.losses


@pytest.mark.parametrize(("before", "after"), [long(2, 1), (1, 3)])
def test_goes_on_behind_a_checkpoint(tmp_path, before, after):
    space = spaces.mixed()

    def train(data, stages, resume=False):
        return npp.train(
            space, data, LOSS, sampler=Greedy(space.candidate_counts), steps=STEPS, seed=1,
            lr=0.05, stages=stages, resume=resume, run_dir=tmp_path / "run", recipe=RECIPE,
            execution={"checkpoint_every": 6},
        )  # fmt: skip

    with pytest.raises(npp.NaspipeError, match="injected"):
        train(Ends(spaces.vectors, 20, fail, tmp_path / "marker"), before)
    run = train(Calm(spaces.vectors), after, resume=True)
    assert 0 < run.manifest["life"]["first"][0] < STEPS
    oracle = plain_loop(space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=0.05)
    assert_same_bits(run, oracle)
    own = Greedy(space.candidate_counts)
    assert stream_of(run) == expected_stream(own, run.losses, DELAY)


def test_another_strategy_cannot_go_on(tmp_path):
    space = spaces.mixed()

    def train(strategy, data, resume=False):
        npp.train(
            space, data, LOSS, sampler=strategy, steps=STEPS, seed=1, resume=resume,
            run_dir=tmp_path / "run", recipe=RECIPE, execution={"checkpoint_every": 6},
        )  # fmt: skip

    class Other(Greedy):
        def propose(self, sequence_id):
            return [0] * len(self.counts)

    Other.__qualname__ = Greedy.__qualname__
    ends = Ends(spaces.vectors, 20, fail, tmp_path / "marker")
    with pytest.raises(npp.NaspipeError, match="injected"):
        train(Greedy(space.candidate_counts), ends)
    with pytest.raises(ConfigError, match="not the strategy that began this run"):
        train(Other(space.candidate_counts), Calm(spaces.vectors), resume=True)


class Wrong(Greedy):
    def propose(self, sequence_id):
        return [99] * len(self.counts) if sequence_id == 9 else super().propose(sequence_id)


class Raises(Greedy):
    def observe(self, sequence_id, score):
        raise ValueError("no idea")


class Stuck(Greedy):
    def propose(self, sequence_id):
        return super().propose(sequence_id) if sequence_id < 5 else None


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize(
    ("strategy", "said"),
    [(Wrong, "99"), (Raises, "no idea"), (Stuck, "waiting although it was told every score")],
)
def test_what_a_strategy_does_wrong_is_said(tmp_path, strategy, said, stages):
    space = spaces.mixed()
    with pytest.raises(ConfigError, match=said) as caught:
        npp.train(
            space, spaces.vectors, LOSS, sampler=strategy(space.candidate_counts), steps=STEPS,
            stages=stages, run_dir=tmp_path / "run", recipe=RECIPE,
        )  # fmt: skip
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"policy": "asp"}, "expected the policy csp or sequential"),
        ({"execution": {"order": "critical-path"}, "stages": 2}, "order critical-path"),
        (
            {"sampler": object()},
            "a strategy with propose.number., which returns choices, and observe",
        ),
        ({"sampler": "tests.nowhere:make"}, "expected module:attribute"),
    ],
)
def test_bad_input(tmp_path, given, said):
    space = spaces.mixed()
    given = {"sampler": "evolution", "run_dir": tmp_path / "run", "steps": STEPS, **given}
    with pytest.raises(ConfigError, match=said):
        npp.train(space, spaces.vectors, LOSS, **given)

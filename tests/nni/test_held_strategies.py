"""Strategies as NNI's users hold them: the object itself, what cannot go in a line, and limits."""

from __future__ import annotations

import json
import threading

import nni.nas.nn.pytorch as nas
import pytest
import torch
from nni.nas import strategy as of_nni
from nni.nas.strategy import TPE, GridSearch, Random, RegularizedEvolution
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.search.strategies import Evolution
from naspipe.streams.stream_file import read_stream
from tests.faults.helpers import Calm, Ends, fail
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()
STEPS, DELAY = 14, 3


class Small(nas.ModelSpace):
    """Layers, depth and inputs to choose; no sizes."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.ops = nn.Sequential(
            *(
                nas.LayerChoice(
                    {"wide": nn.Sequential(nn.Linear(6, 24), nn.Linear(24, 6)),
                     "thin": nn.Linear(6, 6), "none": nn.Identity()},
                    label=f"op{number}",
                )
                for number in range(3)
            )
        )  # fmt: skip
        self.merge = nas.InputChoice(3, n_chosen=2, label="merge")
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = self.stem(x)
        y = self.ops(x)
        return self.head(self.merge([x, y, torch.relu(y)]))


class Cycle:
    """A user's own: subnets in order; remembers the scores."""

    def __init__(self, counts):
        self.counts, self.scores = counts, []

    def propose(self, sequence_id):
        return [(sequence_id + block) % count for block, count in enumerate(self.counts)]

    def observe(self, sequence_id, score):
        self.scores.append(score)


def data(seed, number):
    draw = torch.Generator().manual_seed(seed * 1000 + number)
    return {
        "input": torch.randn(5, 4, generator=draw),
        "target": torch.randint(3, (5,), generator=draw),
    }


def held(seed, number):
    return data(seed + 7, number)


@pytest.fixture(scope="module")
def space():
    torch.manual_seed(3)
    return npp.from_nni(Small())


@pytest.fixture(scope="module")
def run(space, tmp_path_factory):
    path = tmp_path_factory.mktemp("held") / "run"
    return npp.train(space, data, LOSS, steps=6, run_dir=path, progress=False)


def train(space, path, sampler, steps=STEPS, **more):
    return npp.train(
        space, data, LOSS, sampler=sampler, steps=steps, run_dir=path, progress=False,
        feedback_delay=DELAY, **more,
    )  # fmt: skip


def search(run, strategy, name, budget=12, **more):
    return npp.search_subnets(
        run, data, LOSS, held_out=held, strategy=strategy, budget=budget, delay=DELAY, name=name,
        validate=1, calibrate=0, progress=False, **more,
    )  # fmt: skip


def samples(strategy):
    return [model.sample for model in strategy.list_models(sort=False)]


def test_tpe_with_inputs_to_choose_is_the_users_own(space, tmp_path):
    strategy = TPE(optimize_mode="maximize", seed=2, tpe_args={"n_startup_jobs": 4})
    run = train(space, tmp_path / "run", strategy)
    found = samples(strategy)
    assert [space.decisions.choices_of(each) for each in found] == read_stream(run.directory.stream)
    assert {len(each["merge"]) for each in found} == {2} and found[0]["merge"] in ([0, 1], [0, 2])
    best = next(strategy.list_models(limit=1))
    assert best.metric == max(-loss for loss in run.losses)
    assert not [each for each in threading.enumerate() if each.name == "nni-strategy"]
    again = train(space, tmp_path / "again", strategy)
    assert again.losses == run.losses, "the same stream, which it knows"


def test_a_search_by_an_object(run):
    strategy = RegularizedEvolution(population_size=5, sample_size=2, seed=1, dedup=False)
    found = search(run, strategy, "object")
    assert found.manifest["definition"]["strategy"] == "RegularizedEvolution"
    assert found.manifest["status"] == "complete"
    best = next(strategy.list_models(limit=1))
    assert run.space.decisions.choices_of(best.sample) == found.ranked()[0].choices
    with pytest.raises(ConfigError, match=r"explored 12 subnets of Small\[3, 3, 3, 3\] with the s"):
        search(run, strategy, "other", budget=13)


def test_an_object_of_ones_own(run):
    strategy = Cycle(run.space.drawn_counts)
    found = search(run, strategy, "cycle", budget=5)
    assert [each.scores.loss for each in found.candidates] == [-score for score in strategy.scores]


def test_an_object_goes_on_where_a_run_failed(space, tmp_path):
    """The resume begins anew; the object is asked and told what comes behind the failure only."""

    def trained(batches, strategy, name, resume=False):
        return npp.train(
            space, batches, LOSS, sampler=strategy, steps=STEPS, run_dir=tmp_path / name,
            feedback_delay=DELAY, checkpoint_every=4, resume=resume, progress=False,
        )  # fmt: skip

    strategy = TPE(optimize_mode="maximize", seed=2, tpe_args={"n_startup_jobs": 4})
    with pytest.raises(npp.NaspipeError, match="injected"):
        trained(Ends(data, 9, fail, tmp_path / "marker"), strategy, "run")
    run = trained(Calm(data), strategy, "run", resume=True)
    again = TPE(optimize_mode="maximize", seed=2, tpe_args={"n_startup_jobs": 4})
    clean = trained(Calm(data), again, "clean")
    assert run.manifest["life"]["first"][0] > 0
    assert run.losses == clean.losses
    assert samples(strategy) == samples(again)
    assert len(samples(strategy)) == STEPS


REFUSED = {
    "population": (
        lambda: RegularizedEvolution(population_size=3, sample_size=2),
        "expected a population_size above the delay, 3, found 3",
    ),
    "DARTS": (of_nni.DARTS, r"uniform.*nni:RegularizedEvolution.*beside the layers are not supp"),
    "ENAS": (of_nni.ENAS, "ENAS of NNI trains a supernet of its own.*nni:PolicyBasedRL"),
    "name": (lambda: "nni:RandomOneShot", "naspipe.train with its sampler 'uniform'"),
    "a class": (lambda: Random, r"found the class Random; make one, as in Random\(...\)"),
    "a class of naspipe's": (lambda: Evolution, "found the class Evolution; make one"),
    "nothing": (
        object,
        "or a strategy with propose.number., which returns choices, and observe.*, found object",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_explore_is_said_before_anything_is_written(space, run, tmp_path, name):
    make, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        train(space, tmp_path / "run", make())
    with pytest.raises(ConfigError, match=message):
        search(run, make(), "refused")
    assert not (tmp_path / "run").exists()
    assert not list(run.directory.path.glob("search-refused"))


def test_one_that_ran_elsewhere(space, tmp_path):
    strategy = Random(seed=1)
    strategy._status = type(strategy._status).SUCCEEDED
    with pytest.raises(ConfigError, match="whose status is succeeded; NNI's strategies run once"):
        train(space, tmp_path / "run", strategy)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RegularizedEvolution(seed=1), "population_size of 100, and 4 subnets"),
        (lambda: TPE(seed=1), "TPE looks for the least score.*optimize_mode='maximize'"),
    ],
)
def test_what_is_hardly_meant_is_warned_of(run, make, message):
    with pytest.warns(UserWarning, match=message):
        search(run, make(), f"warned-{message[:3]}", budget=4)


@pytest.mark.parametrize(
    "strategy", ["nni:TPE", *map(long, ("nni:RegularizedEvolution", "nni:GridSearch"))]
)
def test_limits_are_kept_by_rejecting(run, strategy):
    free = search(run, "all", "all", budget=81) if strategy == "nni:TPE" else None
    limit = 150.0
    found = search(run, strategy, strategy[4:], budget=8, limits={"params": limit})
    assert len(found.candidates) == 8
    assert all(each.cost.params <= limit for each in found.candidates)
    if free is not None:
        assert sum(each.cost.params > limit for each in free.candidates) > 20


def test_limits_with_objects(run):
    strategy = Random(dedup=True, seed=1)
    found = search(run, strategy, "random", budget=6, limits={"params": 150})
    rejected = [each for each in strategy.list_models(sort=False) if each.metric is None]
    assert rejected and len(list(strategy.list_models())) == len(found.candidates) == 6
    with pytest.raises(ConfigError, match=r"GridSearch of NNI ended by itself.*within the limits"):
        search(run, GridSearch(seed=1), "grid", budget=6, limits={"params": 1})
    with pytest.raises(ConfigError, match="one of NNI's with limits, or your own without"):
        search(run, Cycle(run.space.drawn_counts), "own", limits={"params": 150})


def test_lists_of_samples_and_choices_repeated(space, run, tmp_path):
    drawn = [[0, 1, 2, 0], [2, 2, 1, 1], [1, 0, 0, 2]]
    choices = [space.decisions.choices(each) for each in drawn]
    lines = [
        json.dumps(space.decisions.sample_of(choices[0])),
        json.dumps(choices[1]),
        json.dumps(space.decisions.sample_of(choices[2])),
    ]
    path = tmp_path / "list.jsonl"
    path.write_text("\n".join(lines) + "\n")
    trained = train(space, tmp_path / "run", f"repeat:{path}", steps=7)
    assert read_stream(trained.directory.stream) == [choices[number % 3] for number in range(7)]
    found = search(run, f"file:{path}", "list", budget=3)
    assert [each.choices for each in found.candidates] == choices
    with pytest.raises(ConfigError, match="subnet 0, which is not; take it out, or raise"):
        search(run, f"file:{path}", "limited", budget=3, limits={"params": 150})
    path.write_text(json.dumps({**space.decisions.sample_of(choices[0]), "op1": "thick"}))
    with pytest.raises(ConfigError, match=r"list\.jsonl:1: space Small, label op1: expected"):
        train(space, tmp_path / "other", f"file:{path}", steps=1)
    with pytest.raises(ConfigError, match="1 steps or fewer, add subnets, or use repeat:"):
        path.write_text(json.dumps(choices[0]))
        train(space, tmp_path / "other", f"file:{path}", steps=2)

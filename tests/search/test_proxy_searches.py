"""Searches by zero-cost proxies and by sums: the same bytes on any number of stages, read back."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import naspipe
from naspipe.cli.main import main
from naspipe.evaluation.proxies import Naswot, Synflow
from naspipe.report.searches import search_tables
from naspipe.search.search_directory import SearchDirectory, find_best
from naspipe.search.strategies import make_strategy
from naspipe.store.labels import Decided
from naspipe.streams.feedback import FeedbackLoop
from naspipe.streams.stream_file import read_stream
from tests.equivalence import spaces
from tests.search.plain import held_out

LOSS = nn.CrossEntropyLoss()
SCORES = ("synflow", "naswot", "loss+naswot", "synflow+loss", "synflow+naswot")
OPTIONS = {"population": 4, "tournament": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("proxies") / "run"
    return naspipe.train(
        spaces.mixed(blocks=4), spaces.vectors, LOSS, steps=8, seed=1, run_dir=path, progress=False
    )


def search(run, score, **options):
    options = {"budget": 20, "calibrate": 1, "validate": 2, "delay": 3, **options}
    if "strategy" not in options:
        options["options"] = OPTIONS
    return naspipe.search_subnets(
        run, spaces.vectors, LOSS, held_out=held_out(spaces.vectors), score=score,
        progress=False, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(run):
    return {
        (score, stages): search(
            run, score, stages=stages, name=f"{score.replace('+', '-')}{stages}"
        )
        for score in SCORES
        for stages in (1, 2)
    }


@pytest.mark.parametrize("score", SCORES)
def test_the_bytes_are_the_same_on_any_number_of_stages(found, score):
    one, other = found[score, 1], found[score, 2]
    for name in ("candidates.jsonl", "stream.jsonl"):
        assert (one.path / name).read_bytes() == (other.path / name).read_bytes()
    assert one.manifest.get("sample") == other.manifest.get("sample")


def test_proxies_are_those_of_first_weights_and_the_first_batch(run, found):
    batch = spaces.vectors(1, 0)
    for kind, score in ((Synflow, "synflow"), (Naswot, "naswot")):
        proxy = kind(run.space, 1, 1, batch)
        for candidate in found[score, 1].candidates:
            assert getattr(candidate.scores, score) == proxy(candidate.choices)
            assert math.isnan(candidate.scores.loss)
    assert len({each.scores.naswot for each in found["naswot", 1].candidates}) > 5


@pytest.mark.parametrize("score", SCORES)
def test_the_strategy_is_told_them_in_order(run, found, score):
    counts = run.space.candidate_counts
    strategy = make_strategy("evolution", counts, 0, lambda choices: True, OPTIONS)
    loop, candidates = FeedbackLoop(strategy, 3, 20), found[score, 1].candidates
    proposed = loop.start()
    for number, candidate in enumerate(candidates):
        proposed += loop.take(number, candidate.scores.of(score))
    assert proposed == [candidate.choices for candidate in candidates]


def test_a_sum_is_measured_by_a_sample_that_the_seed_draws(run, found):
    whole = found["loss+naswot", 1]
    sample = [tuple(each) for each in read_stream(whole.path / "sample.jsonl")]
    drawn = make_strategy("random", run.space.candidate_counts, 0, lambda choices: True)
    assert sample == [drawn.propose(number) for number in range(32)]
    alone = search(run, "loss", strategy=f"file:{whole.path / 'sample.jsonl'}", budget=32)
    losses = torch.tensor([-each.scores.loss for each in alone.candidates], dtype=torch.float64)
    spread = whole.manifest["sample"]["loss"]
    assert spread["mean"] == pytest.approx(float(losses.mean()), rel=1e-12)
    assert spread["deviation"] == pytest.approx(float(losses.std(correction=0)), rel=1e-12)
    codes = whole.manifest["sample"]["naswot"]
    for each in whole.candidates:
        expected = (-each.scores.loss - spread["mean"]) / spread["deviation"]
        expected += (each.scores.naswot - codes["mean"]) / codes["deviation"]
        assert each.scores.combined == expected or expected == -math.inf
    longer = search(run, "loss+naswot", budget=24)
    assert longer.candidates[:20] == whole.candidates, "no later subnet has a part in a score"


def test_a_sample_keeps_the_limits(run, found):
    free = found["synflow+naswot", 1]
    middle = sorted(each.cost.params for each in free.candidates)[8]
    bound = search(run, "synflow+naswot", limits={"params": middle})
    assert bound.manifest["sample"] != free.manifest["sample"]
    assert all(each.cost.params <= middle for each in bound.candidates)


def test_they_are_read_ranked_and_shown_as_others(run, found, capsys):
    for score in SCORES:
        again = SearchDirectory(found[score, 2].path).read()
        assert again.candidates == found[score, 2].candidates
        values = [each.scores.of(score) for each in again.ranked()]
        assert values == sorted(values, reverse=True) and f"best {score}" in repr(again)
    last = search(run, "loss+naswot", name="last")
    assert find_best(run.directory.path).choices == last.ranked()[0].choices
    assert main(["report", str(run.directory.path)]) == 0
    tables = {each["name"]: each for each in search_tables(run.directory.path, Decided())}
    table = tables["loss-naswot2"]
    assert table["score"] == "loss+naswot" and not any(table["scores"]["synflow"])
    assert (
        table["scores"]["loss+naswot"][0] == found["loss+naswot", 2].candidates[0].scores.combined
    )
    assert table["best"][0] == found["loss+naswot", 2].ranked()[0].sequence_id
    capsys.readouterr()
    assert main(["runs", str(run.directory.path), "--json"]) == 0
    listed = {each["run"]: each["status"] for each in json.loads(capsys.readouterr().out)}
    assert listed["search-last"] == "complete"


def test_a_space_that_a_proxy_cannot_tell_of_is_refused_before_anything_is_written(tmp_path):
    smooth = naspipe.Space("smooth", [
        naspipe.Block([lambda: nn.Linear(16, 16), nn.GELU]),
        naspipe.Shared("head", lambda: nn.Linear(16, 10)),
    ])  # fmt: skip
    run = naspipe.train(
        smooth, spaces.vectors, LOSS, steps=2, seed=1, run_dir=tmp_path / "run", progress=False
    )
    before = sorted(run.directory.path.rglob("*"))
    for score in ("naswot", "loss+naswot"):
        with pytest.raises(naspipe.ConfigError, match=r"with ReLU, .* found none in space smooth"):
            search(run, score)
    with pytest.raises(naspipe.ConfigError, match="unknown score 'bleu\\+loss'"):
        search(run, "bleu+loss")
    assert sorted(run.directory.path.rglob("*")) == before
    assert len(search(run, "synflow", strategy="random").candidates) == 20

"""Searches that verify their scores: what they report, and that they stop at deliberate faults."""

from __future__ import annotations

import json
import multiprocessing
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.errors import VerificationError
from naspipe.elastic import BatchNorm1d, Linear
from naspipe.evaluation import calibration, evaluation
from naspipe.evaluation.evaluation import EvaluationCompute
from tests.equivalence import spaces
from tests.search.plain import held_out

LOSS = nn.CrossEntropyLoss()


def train(tmp_path, space, data):
    return npp.train(
        space, data, LOSS, steps=12, seed=1, sampler="uniform", lr=0.05, progress=False,
        run_dir=tmp_path / "run",
    )  # fmt: skip


def search(run, data, **options):
    options = {"budget": 9, "calibrate": 3, "validate": 2, "delay": 3, "progress": False, **options}
    options.setdefault("verify", "auto")
    return npp.search_subnets(run, data, LOSS, held_out=held_out(data), **options)


@pytest.fixture
def images_run(tmp_path):
    return train(tmp_path, spaces.maps(), spaces.images)


def in_the_search(function, instead):
    """Have a function do something else, except in the process that computes plain scores."""

    def either(*given, **named):
        is_plain = multiprocessing.current_process().name == "naspipe-verify"
        return (function if is_plain else instead)(*given, **named)

    return either


@pytest.mark.parametrize("more", [{}, {"stages": 2, "score": "top1"}, {"calibrate": 0}])
def test_equal_scores_are_said_to_be(images_run, capfd, more):
    found = search(images_run, spaces.images, progress=True, **more)
    first_is_best = found.ranked()[0].sequence_id == 0
    assert found.manifest["verified"] == {"scores": 1 if first_is_best else 2}
    count = "1 score" if first_is_best else "2 scores"
    assert f"verified: {count}, 0 bits differ" in capfd.readouterr().err


def test_nothing_is_verified_unless_asked(images_run):
    assert "verified" not in search(images_run, spaces.images, verify="0").manifest


@contextmanager
def without_calibration(label, module, norms, **_):
    """Statistics stay those that the run left."""

    class Nothing:
        def settle(self):
            pass

    yield Nothing()


def test_statistics_that_were_not_taken_again_stop_a_search(images_run, monkeypatch):
    monkeypatch.setattr(
        evaluation,
        "fresh_statistics",
        in_the_search(evaluation.fresh_statistics, without_calibration),
    )
    expected = (
        r"^subnet \d+ \([\d,]+\): expected the loss of the plain network, [\d.]+, found [\d.]+ in "
        r"the search; running statistics were not taken again: the score is that of the run's own$"
    )
    with pytest.raises(VerificationError, match=expected):
        search(images_run, spaces.images, name="stale")
    manifest = json.loads((images_run.path / "search-stale" / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert "not taken again" in manifest["failure"]
    assert "top" not in manifest, "the result is not published"


def test_statistics_that_are_reset_and_not_taken_stop_a_search(images_run, monkeypatch):
    def change(self, norm, switch, given):
        self.missing.pop((id(norm.owner), norm.mean), None)
        given[switch] = True
        given["running_mean"] = given["running_var"] = None

    monkeypatch.setattr(calibration._Taken, "change", change)
    with pytest.raises(VerificationError, match=r"that of mean 0 and variance 1$"):
        search(images_run, spaces.images)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_candidate_that_is_another_one_stops_a_search(images_run, monkeypatch, stages):
    real = EvaluationCompute.run_block
    space = images_run.space
    blocks = [n for n, each in enumerate(space.blocks) if len(each.candidates) > 1]

    def swapped(self, task, layer, version, option):
        if layer.block == blocks[0]:
            option = (option + 1) % len(space.blocks[layer.block].candidates)
            layer = layer._replace(candidate=option)
        return real(self, task, layer, version, option)

    monkeypatch.setattr(EvaluationCompute, "run_block", swapped)
    with pytest.raises(VerificationError, match=r"^subnet \d+ .*expected the loss of the plain"):
        search(images_run, spaces.images, stages=stages)


def test_the_best_score_is_verified_where_the_first_is_right(images_run, monkeypatch):
    """A trace that a subnet leaves in the metric of later ones."""
    real = EvaluationCompute._sums
    judged = []

    def sums(self, last, outputs, numbers):
        judged.append(1)
        total = real(self, last, outputs, numbers)
        total[0] -= 0.25 * (len(judged) > 1)
        return total

    monkeypatch.setattr(EvaluationCompute, "_sums", sums)
    with pytest.raises(VerificationError, match=r"^subnet [1-9]"):
        search(images_run, spaces.images, delay=0)
    assert len(judged) == 9, "the first one was right"


class Wrapping(nn.Module):
    """A norm that other code computes, with a part of its buffers and a momentum of its own."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        n = x.shape[1]
        means = self.norm.running_mean[:n], self.norm.running_var[:n]
        return functional.batch_norm(x, *means, training=self.training, momentum=0.3)


class Frozen(nn.BatchNorm1d):
    def train(self, mode=True):
        return super().train(False)


def normed():
    def layer(width, norm):
        return nn.Sequential(nn.Linear(16, width), norm(width), nn.ReLU(), nn.Linear(width, 16))

    own = [lambda w=w: layer(w, Wrapping) for w in (8, 24)]
    return npp.Space(
        "normed",
        [
            npp.Block(own),
            npp.Block([lambda n=n: layer(16, n) for n in (nn.BatchNorm1d, Frozen)]),
            npp.Shared("head", lambda: nn.Linear(16, 16)),
        ],
    )


def elastic():
    """A module that is cut for a width rounds differently in some of its products."""
    width = {"width": [100, 257]}
    return npp.Space(
        "elastic",
        [
            npp.Elastic("stem", lambda: Linear(16, 257, outputs="width"), width),
            npp.Elastic("norm", lambda: BatchNorm1d(257, inputs="width"), width),
            npp.Elastic("head", lambda: Linear(257, 16, inputs="width"), width),
        ],
    )


@pytest.mark.parametrize("make", [normed, elastic])
def test_norms_of_all_kinds(tmp_path, make):
    found = search(train(tmp_path, make(), spaces.vectors), spaces.vectors, budget=6)
    assert found.manifest["verified"] in ({"scores": 1}, {"scores": 2})


def test_what_cannot_be_verified_is_said(tmp_path, capfd):
    run = train(tmp_path, normed(), spaces.vectors)
    proxies = search(run, spaces.vectors, budget=2, score="naswot", progress=True)
    assert proxies.manifest["verified"]["scores"] == 0
    assert (
        "verified: no, because no plain network computes the score naswot" in capfd.readouterr().err
    )
    both = search(run, spaces.vectors, budget=2, score="loss+naswot")
    assert both.manifest["verified"]["because"] == "without naswot"


def test_a_plain_network_that_fails_says_why(images_run, monkeypatch):
    data = held_out(spaces.images)

    def fails(seed, number):
        if multiprocessing.current_process().name == "naspipe-verify":
            raise RuntimeError("injected")
        return data(seed, number)

    found = npp.search_subnets(
        images_run, spaces.images, LOSS, held_out=fails, budget=2, validate=2, verify="auto",
        progress=False,
    )  # fmt: skip
    assert found.manifest["verified"]["scores"] == 0
    assert "RuntimeError: injected" in found.manifest["verified"]["because"]


def test_draws_of_layers_are_those_of_the_search(tmp_path):
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.randn(x.shape[0], 1)

    space = npp.Space("noisy", [npp.Block([lambda: Noisy(16, 16), lambda: nn.Linear(16, 16)])])
    found = search(train(tmp_path, space, spaces.vectors), spaces.vectors, budget=2, strategy="all")
    assert found.manifest["verified"]["scores"] >= 1

"""naspipe's recipes against plain loops whose rates and options are written out here."""

from __future__ import annotations

import json
import math

import pytest
from torch import nn

import naspipe as npp
from naspipe.cli.main import main
from naspipe.config.recipe_file import FOLDER, read_recipe
from naspipe.search.strategies import STRATEGIES, GreedyPool
from naspipe.streams.samplers import draw_stream
from naspipe.streams.stream_file import read_stream
from tests.equivalence.harness import assert_same_bits, oracle_of, plain_loop, plain_torch
from tests.equivalence.spaces import mixed, vectors

STEPS = 14
WARM_UP = 5
SGD = {"momentum": 0.9, "weight_decay": 4e-5}
ADAM = {"betas": (0.9, 0.98), "eps": 1e-9}


def cosine(rate):
    return lambda y: rate * 0.5 * (1.0 + math.cos(math.pi * (y / STEPS)))


RATES = {
    "blockwise": cosine(0.005),
    "blockwise-compress": cosine(0.1),
    "dna": cosine(0.002),
    "fine-tune": cosine(1e-4),
    "spos": lambda y: 0.03 * (1.0 - y / STEPS),
    "fairnas": cosine(0.011),
    "nasbench201": cosine(0.05),
    "evolved-transformer": lambda y: (
        7e-4 * (y + 1) / WARM_UP if y < WARM_UP else 7e-4 * math.sqrt(WARM_UP / y)
    ),
}


@pytest.mark.parametrize(
    ("name", "sampler", "optimizer", "options", "smoothing", "passes"),
    [
        ("spos", "uniform", "SGD", SGD, 0.1, "one"),
        ("blockwise", "uniform", "SGD", {**SGD, "nesterov": True}, 0.0, "one"),
        ("blockwise-compress", "uniform", "SGD", {"momentum": 0.9}, 0.0, "one"),
        ("dna", "uniform", "Adam", {"weight_decay": 1e-4}, 0.0, "one"),
        ("fine-tune", "uniform", "SGD", {"momentum": 0.9}, 0.0, "one"),
        ("fairnas", "fair", "SGD", SGD, 0.0, "fair:4"),  # its blocks have four candidates
        ("nasbench201", "fair", "SGD", {"momentum": 0.9}, 0.0, "one"),
        ("evolved-transformer", "uniform", "Adam", ADAM, 0.1, "one"),
    ],
)
def test_a_recipe_is_its_plain_loop(tmp_path, name, sampler, optimizer, options, smoothing, passes):
    text = (FOLDER / f"{name}.toml").read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(text.replace("warmup_steps = 4000", f"warmup_steps = {WARM_UP}"))
    space, loss = mixed(), nn.CrossEntropyLoss()
    plain = None
    for stages in (1, 2) if name == "spos" else (2,):
        run = npp.train(
            space, vectors, loss, steps=STEPS, seed=1, stages=stages,
            recipe=name if mine.read_text() == text else mine, run_dir=tmp_path / str(stages),
        )  # fmt: skip
        count = STEPS * int(passes.partition(":")[2] or 1)
        drawn = draw_stream(sampler, space.candidate_counts, 1, count)
        assert read_stream(run.directory.stream) == drawn
        smooth = nn.CrossEntropyLoss(label_smoothing=smoothing)
        plain = plain or plain_loop(
            space, vectors, smooth, run, seed=1, optimizer=optimizer, lr=RATES[name],
            options=options, passes=passes,
        )  # fmt: skip
        assert_same_bits(run, plain)


def test_sandwich_is_its_plain_loop(tmp_path):
    space, loss, plain = mixed(), nn.CrossEntropyLoss(), None
    for stages in (1, 2):
        run = npp.train(
            space, vectors, loss, steps=STEPS, seed=1, stages=stages, recipe="sandwich",
            run_dir=tmp_path / str(stages),
        )  # fmt: skip
        stream = read_stream(run.directory.stream)
        assert len(stream) == 4 * STEPS
        drawn = draw_stream("uniform", space.candidate_counts, 1, 2 * STEPS)
        assert [choices for y, choices in enumerate(stream) if y % 4 > 1] == drawn
        plain = plain or plain_loop(
            space, vectors, loss, run, seed=1, optimizer="SGD", options=SGD, passes="sandwich:2",
            lr=lambda y: 0.03 * 0.5 * (1.0 + math.cos(math.pi * (y / STEPS))),
        )  # fmt: skip
        assert_same_bits(run, plain)


def test_greedynas_is_its_plain_loop(tmp_path):
    """The plain loop asks the pool itself, and tells it every loss 15 subnets later."""
    space, steps = mixed(), 60

    def pool():
        return GreedyPool(space.candidate_counts, 1, growth=20, group=4, keep=2)

    plain, strategy = oracle_of(space, 1, "SGD", lambda y: 0.03 * (1.0 - y / steps), SGD), pool()
    stream = []
    with plain_torch():
        for y in range(steps):
            if y > 15:
                strategy.observe(y - 16, -float(plain.losses[y - 16]))
            stream.append(strategy.propose(y))
            loss = nn.CrossEntropyLoss(label_smoothing=0.1)
            plain.step(y, space.chain(stream[-1]), vectors(1, y), loss)
    assert len(set(stream[30:]) & set(stream[:30])) > 3, "paths of the pool"
    for stages in (1, 2):
        run = npp.train(
            space, vectors, nn.CrossEntropyLoss(), steps=steps, seed=1, stages=stages,
            recipe="greedynas", sampler=pool(), run_dir=tmp_path / str(stages),
        )  # fmt: skip
        assert read_stream(run.directory.stream) == stream
        assert_same_bits(run, plain)
    assert read_recipe("greedynas").sampler == "greedy" in STRATEGIES


def test_what_goes_before_what(tmp_path, capsys):
    """On the command line: the space's defaults, the recipe, then --sampler and --set."""
    names = "tests.faults.small_space"
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        "sampler = 'fair'\nlr = 0.3\nschedule = 'cosine'\n[rule]\nstem = 'frozen'\n"
        "[optimizer]\nname = 'Adam'\n[data]\nbatch_size = 3"
    )
    words = ["train", f"{names}:space", "--data", f"{names}:batches", "--steps", "2", "--quiet"]
    words += ["--recipe", str(recipe)]

    def definition(path, *more):
        assert main([*words, "--run-dir", str(tmp_path / path), *more]) == 0
        found = json.loads((tmp_path / path / "manifest.json").read_text())["definition"]
        return found, found["recipe"]

    found, settings = definition("recipe")
    assert found["sampler"] == "fair" and found["rules"]["stem"] == "frozen"
    assert (settings["optimizer"], settings["lr"], settings["schedule"]) == ("Adam", 0.3, "cosine")
    more = ["--set", "lr=0.5", "--set", "rule.stem=exact", "--sampler", "spaced:1"]
    found, settings = definition("set", *more)
    assert found["sampler"] == "spaced:1" and found["rules"]["stem"] == "exact"
    assert (settings["optimizer"], settings["lr"], settings["schedule"]) == ("Adam", 0.5, "cosine")
    assert main(["train", "--resume", str(tmp_path / "set"), "--quiet"]) == 0
    assert main([*words, "--resume", str(tmp_path / "set")]) == 2
    assert "--recipe" not in capsys.readouterr().out


def test_what_arguments_say_goes_before_a_recipe():
    space, loss = mixed(), nn.CrossEntropyLoss()
    made = npp.workload(space, vectors, loss, steps=2, recipe="spos", lr=0.2, sampler="fair")
    recipe = made.definition.recipe
    assert (recipe.lr, recipe.schedule, made.definition.sampler) == (0.2, "linear", "fair")
    assert recipe.optimizer_options == SGD
    other = npp.workload(space, vectors, loss, steps=2, recipe="spos", optimizer="Adam")
    assert (other.definition.recipe.lr, other.definition.recipe.optimizer_options) == (0.03, {})
    with pytest.raises(npp.ConfigError, match="unknown recipe 'spoz'"):
        npp.workload(space, vectors, loss, steps=2, recipe="spoz")


def test_sizes_of_batches(tmp_path, capsys):
    words = ["train", "cv.c3", "--data", "digits", "--steps", "1", "--quiet", "--recipe", "spos"]
    path = tmp_path / "run"
    assert main([*words, "--set", "data.batch_size=5", "--run-dir", str(path)]) == 0
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["definition"]["data"]["batch_size"] == 5
    assert main(["train", "--resume", str(path), "--quiet"]) == 0
    words[-1] = "evolved-transformer"
    assert main([*words, "--run-dir", str(tmp_path / "other")]) == 2
    assert "data set 'digits' takes batch_size, not max_tokens" in capsys.readouterr().err

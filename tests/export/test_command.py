"""``naspipe export`` and ``--retrain`` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

import naspipe
from naspipe.cli.main import main
from naspipe.export.exporter import train_alone
from naspipe.export.pytorch_form import load_pytorch
from naspipe.streams.stream_file import read_stream
from tests.equivalence.harness import assert_same_bits, plain_loop
from tests.export import own_layers
from tests.oracle import bits

OWN = ["--space", "tests.export.own_layers:space"]
DATA = ["--data", "tests.export.own_layers:batches"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent.parent)
    return naspipe.train(
        own_layers.space, own_layers.batches, nn.CrossEntropyLoss(), steps=4, lr=0.01, seed=3,
        run_dir=tmp_path / "run", optimizer_options={"momentum": 0.9},
    )  # fmt: skip


def test_a_step_s_subnet(run, tmp_path, capsys):
    path = str(run.directory.path)
    assert main(["export", path, "--subnet", "2", "-o", str(tmp_path / "out"), *OWN, *DATA]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'out'}\n"
    assert "importable" not in captured.err
    choices = json.loads((tmp_path / "out/model.json").read_text())["choices"]
    assert tuple(choices) == read_stream(run.directory.stream)[2]


def test_trained_alone_it_has_the_bits_of_a_loop_over_one_subnet(run, tmp_path, capsys):
    out = tmp_path / "alone"
    command = ["export", str(run.directory.path), "--subnet", "1,0", "-o", str(out), "--retrain"]
    assert main([*command, "6", *OWN, *DATA]) == 0
    alone = naspipe.Run(own_layers.space, out / "run")
    assert read_stream(alone.directory.stream) == [(1, 0)] * 6
    loss = nn.CrossEntropyLoss()
    oracle = plain_loop(
        own_layers.space, own_layers.batches, loss, alone, seed=3, optimizer="SGD", lr=0.01,
        options={"momentum": 0.9},
    )  # fmt: skip
    assert_same_bits(alone, oracle)
    weight = oracle.layer(3, 0).weight
    assert bits(load_pytorch(out / "model").head.weight) == bits(weight)


def test_averaged_weights(run, tmp_path, capsys):
    command = ["--subnet", "1,0", "--ema", *OWN, *DATA, "-o"]
    assert main(["export", str(run.directory.path), *command, str(tmp_path / "none")]) == 2
    assert "train with --set ema=0.999" in capsys.readouterr().err
    averaged = naspipe.train(
        own_layers.space, own_layers.batches, nn.CrossEntropyLoss(), steps=4, lr=0.01, seed=3,
        run_dir=tmp_path / "averaged", recipe={"ema": 0.5},
    )  # fmt: skip
    assert main(["export", str(averaged.directory.path), *command, str(tmp_path / "out")]) == 0
    weight = averaged.shared("head", ema=True).weight
    assert bits(load_pytorch(tmp_path / "out").head.weight) == bits(weight)
    assert bits(weight) != bits(averaged.shared("head").weight)


def test_an_image_space_by_name(tmp_path, capsys):
    run_dir, out = str(tmp_path / "run"), str(tmp_path / "out")
    train = ["train", "cv.c3", "--data", "digits", "--steps", "1", "--quiet", "--run-dir", run_dir]
    assert main(train) == 0
    words = ["export", run_dir, "--subnet", "first", "-o", out, "--calibrate", "0"]
    assert main(words) == 0
    assert capsys.readouterr().err == ""
    assert load_pytorch(Path(out)).input_names == ("input",)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--subnet", "first"], "expected --space MODULE:ATTRIBUTE"),
        (["--subnet", "9", *OWN], "a sequence ID from 0 to 3"),
        (["--subnet", "first", "--onnx", *OWN], "give the run's --data"),
        (["--subnet", "first", "--retrain", "3", *OWN], "--retrain: expected the run's data"),
        (["--subnet", "first", "--retrain", "0", *OWN, *DATA], "expected 1 step or more"),
        (["--subnet", "first", "--retrain", "x", *OWN], "--retrain: invalid"),
        (["--subnet", "first", "--space", "tests.export:nothing"], "tests.export:nothing"),
    ],
)
def test_bad_input_is_one_line(run, tmp_path, capsys, words, message):
    out = tmp_path / "out"
    assert main(["export", str(run.directory.path), "-o", str(out), *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not out.exists()


def test_no_run(tmp_path, capsys):
    assert main(["export", str(tmp_path), "--subnet", "first", "-o", "x"]) == 2
    assert "not a run directory" in capsys.readouterr().err


def test_trained_alone_twice_in_one_place_is_refused(run, tmp_path):
    again = {"data": own_layers.batches, "loss": nn.CrossEntropyLoss(), "steps": 1}
    train_alone(run, (0, 0), tmp_path / "alone", **again)
    with pytest.raises(naspipe.ConfigError, match="not empty"):
        train_alone(run, (0, 0), tmp_path / "alone", **again)

"""Layers and subnets in the words of a space's labels."""

from __future__ import annotations

import json

import pytest

from naspipe.cli.main import main
from naspipe.config.errors import ConfigError
from naspipe.store.labels import Decided
from tests.store.fake_run import FakeRun

STORED = [
    [{"op0": ["0"]}, {"op0": ["1"]}],
    [{"op1": ["a"], "depth": ["2", "3"]}, {"op1": ["b"], "depth": ["2", "3"]}, {"depth": ["1"]}],
    [{"op2": ["a"], "depth": ["3"]}, {"depth": ["1", "2"]}],
    [{"kernel": ["3"], "width": ["4"]}, {"kernel": ["3"], "width": ["8"]}],
]


def test_of_layers_and_subnets():
    decided = Decided(STORED)
    assert [decided.of_layer(1, n) for n in range(4)] == ["op1=a", "op1=b", "depth=1", ""]
    assert decided.of_layer(2, 1) == "depth=1|2"
    assert decided.of_subnet((1, 0, 1, 1)) == "op0=1 op1=a depth=2 kernel=3 width=8"
    assert Decided().of_subnet((1, 0)) == Decided().of_layer(0, 0) == ""


def test_every_printed_name_finds_its_layer():
    decided = Decided(STORED)
    for block, candidates in enumerate(STORED):
        for number in range(len(candidates)):
            assert decided.find(decided.of_layer(block, number)) == (block, number)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("op9=1", "no label 'op9' decides a layer: expected op0, op1, depth, op2, kernel, width"),
        ("op0=7", "op0=7 decides no layer: expected op0=0, op0=1"),
        ("kernel=3", "'kernel=3' is several layers: expected one of 3.0, 3.1"),
    ],
)
def test_what_finds_no_layer_or_several_is_one_line(text, said):
    with pytest.raises(ConfigError) as error:
        Decided(STORED).find(text)
    assert str(error.value) == said


def test_a_log_names_layers_by_label_and_value(tmp_path, capsys):
    run = str(FakeRun(decided=STORED[:2]).write(tmp_path / "run"))
    assert main(["log", run]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("0.1 op0=1  ") for line in lines)
    orders = []
    for layer in ("0.1", "op0=1"):
        assert main(["log", run, "--layer", layer]) == 0
        orders.append(capsys.readouterr().out)
    assert orders[0] == orders[1] != "\n"
    assert main(["log", run, "--layer", "op0=1", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["layer"], found["decision"]) == ("0.1", "op0=1")


def test_a_run_without_labels_says_so(tmp_path, capsys):
    run = str(FakeRun().write(tmp_path / "run"))
    assert main(["log", run, "--layer", "op0=1"]) == 2
    assert "expected BLOCK.CANDIDATE, as the run recorded no labels" in capsys.readouterr().err

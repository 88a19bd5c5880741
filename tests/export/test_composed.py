"""Student blocks as one network: judged whole, and written so that it works without naspipe."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.cli.main import main
from naspipe.export.pytorch_form import load_pytorch
from tests.equivalence import spaces
from tests.equivalence.harness import plain_torch
from tests.equivalence.test_blockwise import SEED, distill, students
from tests.export.outside import outputs_outside
from tests.oracle import bits
from tests.search.plain import held_out

HELD = held_out(spaces.vectors)
CHOICES = [(0, 1), (2,), ()]
STUDENTS = students()
"""For the command line."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return distill(tmp_path_factory.mktemp("blockwise") / "run", 1)


def plain_scores(network, calibrate):
    """Loss and top-1 by a loop of its own."""
    norms = [each for each in network.modules() if isinstance(each, nn.BatchNorm1d)]
    loss = right = total = 0.0
    with plain_torch(), torch.no_grad():
        for norm in norms if calibrate else ():
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        for place in range(calibrate):
            network(spaces.vectors(SEED, place)["input"])
        network.eval()
        for place in range(4):
            batch = HELD(SEED, place)
            output, target = network(batch["input"]), batch["target"]
            count = len(target)
            loss += nn.functional.cross_entropy(output, target).double().item() * count
            right += float((output.argmax(1) == target).sum())
            total += count
    return loss / total, right / total


@pytest.mark.parametrize("calibrate", [0, 3])
def test_what_is_exported_is_the_network_bit_for_bit(found, tmp_path, calibrate):
    before = npp.validate_blocks(found, CHOICES, HELD, calibrate=calibrate, validate=4)
    done = npp.export_blocks(
        found, CHOICES, tmp_path / "out", held_out=HELD, calibrate=calibrate, validate=4
    )
    network = found.network(CHOICES)
    assert done.scores == before
    assert done.scores[:2] == plain_scores(network, calibrate)
    assert done.is_checked and not done.needs and not done.untrained
    batch = spaces.vectors(SEED, 5)
    with plain_torch(), torch.no_grad():
        expected = network(batch["input"])
    (output,) = outputs_outside({done.directory: {"input": batch["input"]}})[done.directory]
    assert bits(output) == bits(expected)
    description = json.loads((done.directory / "model.json").read_bytes())
    assert description["choices"] == [0, 1, 2] and description["calibrated"] == calibrate
    assert [each["label"] for each in description["layers"]] == [
        "0/0.0",
        "0/1.1",
        "1/0.2",
        "2/only",
    ]
    assert "Student blocks 0,1;2; of run." in (done.directory / "model.py").read_text()


def test_the_command_line(found, tmp_path, capsys):
    run = str(found.blocks[0].directory.path.parent)
    own = ["--space", f"{__name__}:STUDENTS", "--data", "tests.equivalence.spaces:vectors"]
    out = tmp_path / "out"
    assert main(["export", run, "--subnet", "0,1;2;", "-o", str(out), *own]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    batch = spaces.vectors(SEED, 5)
    with plain_torch(), torch.no_grad():
        assert torch.equal(
            load_pytorch(out)(batch["input"]), found.network(CHOICES)(batch["input"])
        )
    ratings = npp.rate_blocks(found, HELD, calibrate=1, validate=1)
    best = [each for own in npp.combine_blocks(ratings).choices for each in own]
    assert main(["export", run, "--subnet", "best", "-o", str(tmp_path / "best"), *own]) == 0
    assert json.loads((tmp_path / "best/model.json").read_bytes())["choices"] == best


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--subnet", "0,1;2;", "--space", f"{__name__}:CHOICES"], "expected --space"),
        (["--subnet", "first"], "expected best, or the choices of 3 blocks, as in 0,1;2;"),
        (["--subnet", "0,1;2"], "those of 3 blocks, one list for each, found 2"),
        (["--subnet", "0,1;7;"], "space second, choice block 0: expected a choice from 0 to 2"),
        (["--subnet", "0,1;2;", "--ema"], "--ema: expected a run of its own"),
        (["--subnet", "0,1;2;", "--calibrate", "-1"], "expected 0 batches or more, found -1"),
        (["--subnet", "0,1;2;", "--space", f"{__name__}:HELD"], "expected the list of students"),
        (["--subnet", "0,1;2;", "-o", "."], "expected a new or empty directory"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(found, tmp_path, capsys, words, text):
    run = str(found.blocks[0].directory.path.parent)
    own = ["--space", f"{__name__}:STUDENTS", "--data", "tests.equivalence.spaces:vectors"]
    if "expected --space" in text:
        own = []
    command = ["export", run, "-o", str(tmp_path / "out"), *own, *words]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert text in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()

"""The best subnet of a search is exported as the search judged it: statistics taken anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import naspipe as npp
from naspipe.cli.main import main
from naspipe.evaluation.evaluation import batch_sums
from naspipe.export.assembly import who_keep
from naspipe.export.pytorch_form import load_pytorch
from naspipe.search.scores import scores_of
from naspipe.search.search_directory import find_best
from tests.equivalence.harness import plain_torch
from tests.faults import small_space as small

NAMES = ["--space", f"{small.__name__}:space", "--data", f"{small.__name__}:batches"]
HELD = ["--validation", f"{small.__name__}:held", "--validate", "3"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trained from the command line, and searched."""
    path = str(tmp_path_factory.mktemp("calibrated") / "run")
    words = ["--set", "ema=0.9", "--steps", "12", "--seed", "3", "--quiet", "--run-dir", path]
    assert main(["train", NAMES[1], *NAMES[2:], *words]) == 0
    search = ["--budget", "6", "--strategy", "random", "--calibrate", "3", "--quiet", "--name", "1"]
    assert main(["search", path, *search, *HELD]) == 0
    return path


def exported(run, out, *words):
    assert main(["export", run, "-o", str(out), *words]) == 0
    return load_pytorch(out), json.loads((out / "model.json").read_bytes())


def scores_outside(loaded):
    """Loss, top-1 and top-5 of what was loaded, on the search's batches."""
    total = torch.zeros(5, dtype=torch.float64)
    with plain_torch(), torch.no_grad():
        for number in range(3):
            batch = small.held(3, number)
            outputs = loaded(*(batch[name] for name in loaded.input_names))
            total += batch_sums(small.loss, (outputs,), batch["target"])
    return scores_of(total.tolist())[:3]


def test_its_score_is_the_searchs_bit_for_bit(run, tmp_path, capsys):
    loaded, description = exported(run, tmp_path / "best", "--subnet", "best")
    best = find_best(Path(run))
    assert scores_outside(loaded) == best.scores[:3]
    assert description["calibrated"] == 3
    assert "taken anew from 3 batches; --calibrate 0 keeps" in capsys.readouterr().err
    kept, description = exported(run, tmp_path / "kept", "--subnet", "best", "--calibrate", "0")
    assert description["calibrated"] == 0
    assert scores_outside(kept) != best.scores[:3]
    listed = ",".join(map(str, best.choices))
    other, _ = exported(run, tmp_path / "listed", "--subnet", listed, "--calibrate", "3")
    assert scores_outside(other) == best.scores[:3]


def test_statistics_of_all_subnets_are_told_of(run, tmp_path, capsys):
    """Unless they are asked for, or there are none."""
    found, choices = npp.Run(small.space, Path(run)), find_best(Path(run)).choices
    npp.export_subnet(found, choices, tmp_path / "mixture")
    said = capsys.readouterr().err
    assert "keeps running statistics, which are exported as all subnets left them" in said
    assert "calibrate=16" in said
    npp.export_subnet(found, choices, tmp_path / "asked", calibrate=0)
    assert capsys.readouterr().err == ""
    words = ["--subnet", ",".join(map(str, choices))]
    exported(run, tmp_path / "command", *words)
    assert "--calibrate 16 takes the subnet's own" in capsys.readouterr().err


def test_layers_that_keep_statistics_are_counted():
    assert who_keep(["stem"]) == "layer stem keeps"
    assert who_keep(["stem", "0.1"]) == "layer stem and 1 other keep"
    assert who_keep(["stem", "0.1", "1.0", "head"]) == "layer stem and 3 others keep"


def test_a_search_of_averages_is_exported_with_them(run, tmp_path):
    words = ["--budget", "4", "--strategy", "random", "--ema", "--quiet", "--name", "ema"]
    assert main(["search", run, *words, *HELD]) == 0
    loaded, _ = exported(run, tmp_path / "ema", "--subnet", "best")
    assert scores_outside(loaded) == find_best(Path(run)).scores[:3]


def test_bad_input(run, tmp_path, capsys):
    words = ["--subnet", "best", "--calibrate", "-1", "-o", str(tmp_path / "out")]
    assert main(["export", run, *words]) == 2
    assert "calibrate: expected 0 batches or more, found -1" in capsys.readouterr().err

"""``naspipe search`` and ``export --retrain`` judge and train by the loss of the run."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

import naspipe
from naspipe.cli.main import main
from naspipe.search.search_directory import SearchDirectory

SPACE = """
import torch.nn as nn, torch.nn.functional as F, naspipe as npp

def loss(output, target):
    return 100 * F.cross_entropy(output, target)

space = npp.Space("s", [
    npp.Block([lambda: nn.Linear(6, 6), lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU())]),
    npp.Shared("head", lambda: nn.Linear(6, 3)),
])
"""

DATA = """
import torch, naspipe as npp

def data(seed, number):
    draw = torch.Generator().manual_seed(number)
    target = torch.randint(0, 3, (8,), generator=draw)
    return {"input": torch.randn(8, 6, generator=draw), "target": target, "weight": torch.ones(8)}
"""

LOSS = """
import torch.nn.functional as F

def loss(output, target):
    return F.cross_entropy(output, target)

def weighted(output, target, weight):
    return (F.cross_entropy(output, target, reduction="none") * weight).mean()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Modules of a user's: of the space, of the data with the loss, and of neither."""
    texts = {"lsp": SPACE, "lda": DATA + LOSS, "ldb": DATA, "lother": LOSS}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def trained(place, data, loss, **more):
    space = importlib.import_module("lsp").space
    data = importlib.import_module(data).data
    return naspipe.train(
        space, data, loss, steps=6, run_dir=place / "r", progress=False, **more
    ), data  # fmt: skip


def searched(run, data):
    return main([
        "search", str(run.path), "--space", "lsp:space", "--data", data, "--validation", data,
        "--budget", "2", "--validate", "2", "--strategy", "random", "--quiet",
    ])  # fmt: skip


@pytest.mark.parametrize(("data", "of"), [("lda", "lda"), ("ldb", "lother")])
def test_a_search_judges_by_the_run_s_loss(place, capsys, data, of):
    """Whether the data's module has it, or one that no option names."""
    loss = importlib.import_module(of).loss
    run, batches = trained(place, data, loss)
    assert searched(run, f"{data}:data") == 0
    found = SearchDirectory(run.path / "search-1").read()
    expected = naspipe.search_subnets(
        run, batches, loss, held_out=batches, budget=2, validate=2, strategy="random",
        progress=False,
    )  # fmt: skip
    assert [each.scores for each in found.ranked()] == [each.scores for each in expected.ranked()]


def test_a_loss_that_is_not_found_is_refused(place, capsys):
    run, _ = trained(place, "ldb", importlib.import_module("lother").loss)
    (place / "lother.py").write_text("")
    del sys.modules["lother"]
    importlib.invalidate_caches()
    assert searched(run, "ldb:data") == 2
    error = capsys.readouterr().err
    assert "expected its loss as it was trained, lother.loss, found lsp.loss" in error
    assert "give the run's own, as loss in ldb or lsp" in error and error.count("\n") == 1
    out = place / "out"
    words = ["export", str(run.path), "--space", "lsp:space", "--data", "ldb:data", "-o", str(out)]
    assert main([*words, "--subnet", "0", "--retrain", "2"]) == 2
    assert "found lsp.loss" in capsys.readouterr().err and not out.exists()
    assert main([*words, "--subnet", "0"]) == 0, "an export alone needs no loss"


def test_a_retraining_has_the_run_s_loss_and_its_fields(place, capsys):
    loss = importlib.import_module("lda").weighted
    run, _ = trained(place, "lda", loss, loss_fields=("target", "weight"))
    words = ["export", str(run.path), "--space", "lsp:space", "--data", "lda:data", "-o", "out"]
    assert main([*words, "--subnet", "0", "--retrain", "2"]) == 0
    alone = naspipe.open_run(place / "out/run", run.space)
    for key in ("loss", "loss_fields"):
        assert alone.manifest["definition"][key] == run.manifest["definition"][key]


def test_a_training_takes_the_loss_of_the_data_s_module_where_the_space_has_none(place, capsys):
    (place / "lsp.py").write_text(SPACE.replace("def loss", "def other"))
    words = ["train", "lsp:space", "--steps", "2", "--quiet", "--run-dir", "t", "--data"]
    assert main([*words, "lda:data"]) == 0
    assert naspipe.open_run("t").manifest["definition"]["loss"] == "lda.loss"


@pytest.mark.parametrize("data", ["lda", "ldb"])
def test_a_loss_of_a_notebook_may_mean_no_two(place, capsys, data):
    """``__main__.loss`` fits a loss of any module; each of two would be a guess."""
    run, _ = trained(place, data, importlib.import_module("lother").loss)
    manifest = json.loads((run.path / "manifest.json").read_text())
    manifest["definition"]["loss"] = "__main__.loss"
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    assert searched(run, f"{data}:data") == (2 if data == "lda" else 0)
    error = capsys.readouterr().err
    assert ("found lda.loss and lsp.loss; rename" in error) == (data == "lda")

"""The proof comes before anything else, and the run's manifest says what was compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.cli.main import main
from naspipe.config.errors import StageFailedError
from naspipe.machine.forking import done_apart
from naspipe.store.compare import compare_runs
from tests.nni.spaces import Residual, batches, make

LOSS = nn.CrossEntropyLoss()

MINE = """
import torch
from torch import nn
import nni.nas.nn.pytorch as nas
import naspipe
from tests.nni.{room} import {kind}

torch.manual_seed(3)
space = naspipe.from_nni({kind}())
loss = nn.CrossEntropyLoss()


def data(seed, y):
    draw = torch.Generator().manual_seed(seed + y)
    target = torch.randint(10, (5,), generator=draw)
    return {{"input": torch.randn(5, 3, 4, 4, generator=draw), "target": target}}
"""


def train(path, **options):
    space = npp.from_nni(make("own"), **options)
    return npp.train(space, batches, LOSS, steps=3, seed=1, run_dir=path)


class Refusing:
    """A proof that fails."""

    def prove(self, batch):
        assert batch["input"].shape == (4, 3, 32, 32)
        raise npp.ConfigError("this chain is another network")


def test_a_run_says_what_was_compared_and_compare_does_not_mind(tmp_path):
    runs = [train(tmp_path / "all"), train(tmp_path / "one", proofs=1)]
    all_of_it, one = (run.manifest["proof"] for run in runs)
    assert (all_of_it["layers_compared"], all_of_it["layers"]) == (11, 11)
    assert one["architectures"] == 1 and one["layers_compared"] == 5
    (verdict,) = compare_runs([run.directory.path for run in runs])
    assert not verdict.reason and not verdict.differences and not verdict.warnings


def test_a_proof_is_made_once(tmp_path):
    space = npp.from_nni(make("own"), example=batches(0, 0)["input"])
    record = space.proof.prove({})
    frozen = space.with_rules({"head": npp.Frozen()})
    assert frozen.proof.prove({}) is record


def test_nothing_is_trained_or_searched_without_it(tmp_path):
    run = train(tmp_path / "run")
    run.space.proof = Refusing()
    with pytest.raises(npp.ConfigError, match="another network"):
        npp.search_subnets(run, batches, LOSS, held_out=batches, budget=2)
    assert not list((tmp_path / "run").glob("search*"))
    with pytest.raises(npp.ConfigError, match="another network"):
        npp.train(run.space, batches, LOSS, steps=2, run_dir=tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_nothing_is_profiled_or_simulated_without_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "another.py").write_text(MINE.format(room="misbuilt", kind="Rescaled"))
    names = ("another:space", "--data", "another:data")
    for command in ("profile", "simulate", "train"):
        assert main([command, *names]) == 2
        err = capsys.readouterr().err
        assert "expected the chain to be NNI's own model" in err and err.count("\n") == 1


def test_the_command_is_silent_about_nnis_own_warnings(tmp_path):
    (tmp_path / "cell.py").write_text(MINE.format(room="filtered", kind="Cell"))
    command = (
        sys.executable, "-m", "naspipe", "train", "cell:space", "--data", "cell:data",
        "--steps", "2", "--run-dir", "run",
    )  # fmt: skip
    path = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert "Warning" not in done.stderr and "nni" not in done.stderr


def test_what_goes_wrong_apart_is_told_here():
    def refuses(go_on):
        go_on()
        raise npp.ConfigError("so it is")

    with pytest.raises(npp.ConfigError, match="so it is"):
        done_apart(refuses, "the work")
    with pytest.raises(StageFailedError, match="ZeroDivisionError"):
        done_apart(lambda go_on: {"never": 1 / 0}, "the work")
    with pytest.raises(StageFailedError, match="ended with exit status 3"):
        done_apart(lambda go_on: os._exit(3), "the work")
    assert done_apart(lambda go_on: {"done": [1]}, "the work") == {"done": [1]}


def test_a_forward_that_needs_its_whole_batch():
    class Whole(nn.Module):
        def forward(self, x):
            return x.view(8, -1).sum(1, keepdim=True) * torch.ones(1, 10)

    import nni.nas.nn.pytorch as nas

    class Fixed(nas.ModelSpace):
        def __init__(self):
            super().__init__()
            self.op = nas.LayerChoice([Residual(3, 1), nn.Identity()], label="op")
            self.head = Whole()

        def forward(self, x):
            return self.head(self.op(x))

    record = npp.from_nni(Fixed(), example=torch.randn(8, 3, 3, 5)).proof.prove({})
    assert record["layers_compared"] == record["layers"]

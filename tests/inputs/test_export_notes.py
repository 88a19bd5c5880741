"""The start says of what no export could write; the rest is exported with the run's bits."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

import naspipe as npp
from naspipe.checks.exportable import export_note
from naspipe.checks.sketched import SketchedLayers


class Holds(nn.Linear):
    """A layer whose forward reads what a test puts there."""

    def __init__(self, value):
        super().__init__(6, 6)
        self.value = value

    def forward(self, x):
        return super().forward(x) + (0 if self.value is None else 1)


class Keeps(nn.Module):
    """One whose forward does not."""

    def __init__(self, value):
        super().__init__()
        self.weight, self.value = nn.Parameter(torch.eye(6)), value

    def forward(self, x):
        return x @ self.weight


class Doubled(nn.Module):
    def forward(self, x):
        return x * 2


def hooked():
    made = nn.Linear(6, 6)
    made.register_forward_hook(lambda module, given, found: found * 2)
    return made


def doubled():
    return torch.nn.utils.parametrize.register_parametrization(Keeps(None), "weight", Doubled())


TOLD = {
    "hooks": (hooked, "the hooks of its Linear would have to be part of a forward"),
    "compiled": (
        lambda: torch.compile(nn.Linear(6, 6), backend="eager"),
        "it would have to be trained without torch.compile",
    ),
    "lambda": (lambda: Holds(lambda x: x), "its Holds.value would .*, and is a lambda"),
    "tensor": (lambda: Holds({"a": [torch.ones(1)]}), "its Holds.value would .*, and is a tensor"),
    "keys": (lambda: Holds({(1, 2): 3}), "its Holds.value .* is a key of type tuple"),
}
WRITTEN = {
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(6, 6)),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(6, 6)),
    "own": doubled,
    "old weight_norm": lambda: weight_norm(nn.Linear(6, 6)),
    "old spectral_norm": lambda: nn.Sequential(spectral_norm(nn.Linear(6, 6))),
    "not read": lambda: Keeps(lambda x: x),
    "function": lambda: Holds([torch.relu, {"a": hooked}]),
}


def space_of(make):
    inner = npp.Block([nn.Identity, lambda: nn.Sequential(nn.ReLU(), make())])
    return npp.Space("told", [inner, npp.Shared("head", lambda: nn.Linear(6, 3))])


def batches(seed, number):
    draw = torch.Generator().manual_seed(number)
    target = torch.randint(0, 3, (8,), generator=draw)
    return {"input": torch.randn(8, 6, generator=draw), "target": target}


def trained(tmp_path, make):
    return npp.train(
        space_of(make), batches, nn.CrossEntropyLoss(), steps=4, run_dir=tmp_path / "run",
        progress=False, sampler="fair",
    )  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_what_no_export_could_write_is_told_at_the_start(tmp_path, capsys, name):
    make, said = TOLD[name]
    run = trained(tmp_path, make)
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "export" in each]
    head, _, tail = line.partition("to export layer 0.1, ")
    assert head and tail.endswith("; run.layer(0, 1) gives the trained module anyway")
    assert re.match(said, tail), line
    with pytest.raises(npp.ConfigError, match=r"run\.layer\(\.\.\.\) and run\.shared\(\.\.\.\)"):
        npp.export_subnet(run, (1,), tmp_path / "out", data=batches)
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the old weight_norm
@pytest.mark.parametrize("name", WRITTEN)
def test_what_can_be_written_is_not_and_has_the_bits_of_the_run(tmp_path, capsys, name):
    run = trained(tmp_path, WRITTEN[name])
    assert "export" not in capsys.readouterr().err
    assert npp.export_subnet(run, (1,), tmp_path / "out", data=batches).is_checked
    assert "parametrizations" not in (tmp_path / "out/model.json").read_text()


def test_shared_layers_are_called_as_runs_call_them():
    space = npp.Space("told", [npp.Shared("stem", hooked)])
    note = export_note(space, SketchedLayers(space))
    assert note.endswith("; run.shared('stem') gives the trained module anyway")

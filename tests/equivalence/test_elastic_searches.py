"""Searches over settings: limits by sliced sizes, and exports with the searched score."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.export.pytorch_form import load_pytorch
from naspipe.machine.determinism import deterministic_torch
from tests.equivalence import elastic_spaces as elastic
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()


def trained(path, space, data, loss=LOSS):
    return npp.train(space, data, loss, steps=6, run_dir=path, progress=False)


@pytest.mark.parametrize(
    ("make", "data", "loss", "most"),
    [
        (elastic.images, elastic.maps, LOSS, 500),
        long(elastic.linears, elastic.vectors, LOSS, 500),
        (elastic.texts, elastic.tokens, elastic.TokenLoss(), 2500),
    ],
)  # fmt: skip
def test_the_cut_subnet_has_the_searched_score(tmp_path, make, data, loss, most):
    run = trained(tmp_path / "run", make(), data, loss)
    how = {"held_out": data, "validate": 3, "budget": 5, "strategy": "random", "progress": False}
    searches = [
        npp.search_subnets(
            run, data, loss, calibrate=2, limits={"params": most}, stages=stages, **how
        )
        for stages in (1, 2)
    ]
    best, other = (search.ranked()[0] for search in searches)
    assert (best.choices, best.scores.loss) == (other.choices, other.scores.loss), "on any stages"
    assert all(each.cost.params <= most for each in searches[0].candidates)
    whole = sum(p.numel() for b in make().blocks for p in b.candidates[0]().parameters())
    assert best.cost.params < whole

    found = npp.export_subnet(run, best.choices, tmp_path / "cut", data=data, calibrate=2)
    assert found.is_checked and not found.needs, "of torch's layers, or written out"
    cut = load_pytorch(found.directory)
    assert sum(p.numel() for p in cut.parameters()) == best.cost.params, "sliced"
    total = 0.0
    with deterministic_torch(1), torch.no_grad():
        for number in range(3):
            batch = data(run.manifest["definition"]["seed"], number)
            total += float(loss(cut(batch["input"]), batch["target"]))
    assert total / 3 == best.scores.loss


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (lambda m, *, inner, width: nn.Linear(inner, 3),
         r"layer own\[8,16\]: expected .* with this setting, \[6, 16\], found \[6, 3\]"),
        (lambda m, *, inner, width: nn.Linear(7, width), "with this setting, found RuntimeError"),
        (lambda m, *, inner, width: nn.Linear(inner, width), "with this setting, found a differen"),
        (lambda m, *, inner, width: None, "to return a torch.nn.Module, found NoneType"),
        (None, r"layer own.*expected Elastic\(..., cut=function\) or a method cut of its Own"),
    ],
)  # fmt: skip
def test_a_cut_that_does_not_fit_is_refused(tmp_path, cut, said):
    space = elastic.linears()
    blocks = [replace(each, cut=cut) if each is space.blocks[4] else each for each in space.blocks]
    space = npp.Space("linears", blocks)
    run = trained(tmp_path / "run", space, elastic.vectors)
    choices = space.decisions.choices_of({"width": 16, "inner": 8, "2": 1})
    with pytest.raises(ConfigError, match=said) as found:
        npp.export_subnet(run, choices, tmp_path / "cut", data=elastic.vectors, calibrate=0)
    assert "\n" not in str(found.value)
    assert not (tmp_path / "cut").exists()


def test_a_run_opened_again_has_the_same_settings(tmp_path):
    run = trained(tmp_path / "run", elastic.linears(), elastic.vectors)
    assert npp.open_run(run.directory.path, elastic.linears()).stream == run.stream
    blocks = list(elastic.linears().blocks)
    blocks[3] = replace(blocks[3], settings={"width": elastic.WIDTHS, "inner": [4, 16]})
    blocks[4] = replace(blocks[4], settings={"inner": [4, 16], "width": elastic.WIDTHS})
    with pytest.raises(ConfigError, match=r"expected the settings .* found"):
        npp.open_run(run.directory.path, npp.Space("linears", blocks))

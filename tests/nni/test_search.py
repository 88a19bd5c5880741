"""NNI's strategies search a trained supernet: the same subnets and scores on any stages."""

from __future__ import annotations

import pytest
import torch

import naspipe as npp
from naspipe.nni.strategies import STRATEGIES
from tests.nni.spaces import batches
from tests.nni.test_strategies import Wide
from tests.thinned import long

LOSS = torch.nn.CrossEntropyLoss()
SEARCHES = [*zip(STRATEGIES, (2, 4, 2, 4, 2), strict=True)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("nni-search") / "run"
    return npp.train(npp.from_nni(Wide()), batches, LOSS, steps=8, seed=3, run_dir=path)


@pytest.mark.parametrize(
    ("name", "stages"), [*SEARCHES[:2], *(long(*each) for each in SEARCHES[2:])]
)
def test_five_strategies_search_alike_on_1_and_on_more_stages(run, name, stages):
    found = [
        npp.search_subnets(
            run, batches, LOSS, held_out=lambda seed, number: batches(seed + 9, number),
            strategy=f"nni:{name}", budget=14, delay=3, validate=1, calibrate=1, seed=1,
            stages=number, name=f"{name}-{number}",
        )
        for number in (1, stages)
    ]  # fmt: skip
    lines = {each.path.joinpath("candidates.jsonl").read_bytes() for each in found}
    assert len(lines) == 1
    assert len({each.choices for each in found[0].candidates}) > 1
    assert all(0 < each.scores.loss < 100 for each in found[0].candidates)

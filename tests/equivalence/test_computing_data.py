"""Data that compute, as a teacher's lessons do: where the caller has computed with several threads.

OpenMP's threads do not survive a fork: whoever computes with several of them there waits forever.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from tests.equivalence import spaces


def computed(seed, number):
    """A batch that takes a product large enough for several threads."""
    batch = spaces.vectors(seed, number)
    large = torch.ones(600, 600)
    return {**batch, "input": batch["input"] + (large @ large).mean() * 0}


@pytest.mark.timeout(60)
def test_validation_goes_on_where_the_caller_computed_with_threads(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        computed(1, 0)
        run = npp.train(
            spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=4, seed=1, stages=1,
            held_out=computed, run_dir=tmp_path / "run",
            execution={"validate_every": 4, "validate_batches": 2, "validate_subnets": "1"},
        )  # fmt: skip
    finally:
        torch.set_num_threads(before)
    assert len(run.validations) == 1

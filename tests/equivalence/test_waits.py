"""A run's manifest says how often each stage waited for its device."""

from __future__ import annotations

import pytest
from torch import nn

import naspipe as npp
from tests.equivalence import spaces


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("budget", ["", "1.5x"])
def test_a_manifest_has_the_waits_of_every_stage(tmp_path, stages, budget):
    run = npp.train(
        spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=8, stages=stages,
        run_dir=tmp_path / "run", execution={"memory_budget": budget} if budget else {},
    )  # fmt: skip
    measured = run.manifest["measured"]["stages"]
    blocks = [stage["blocks"] for stage in measured]
    assert len(blocks) == stages and sum(blocks) == 8 * 2 * len(spaces.mixed())
    for stage in measured:
        found = stage["waits_per_block"]
        if not budget:
            assert found == {}  # nothing waits for a device that is the host
            continue
        assert found == {"block": 1.0}  # for copies nobody waits
        assert stage["load_copies"] and stage["save_copies"]

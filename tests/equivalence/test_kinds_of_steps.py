"""What a step is made of, and how its passes are put together: each against its plain loop."""

from __future__ import annotations

import pytest
from torch import nn

from naspipe.streams.stream_file import read_stream
from tests.equivalence import spaces
from tests.equivalence.harness import check, restless
from tests.equivalence.test_timing_and_mutations import inject_delays
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()
MOMENTUM = {"momentum": 0.9}
ALL = {"clip_global_norm": 1.0, "ema": 0.9}


@pytest.mark.parametrize("average", ["", ":passes", ":users"])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_steps_of_several_subnets(tmp_path, groups, average):
    """Subnets of a step share some layers and not others, within groups and between them."""
    check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(1, 2), steps=8, lr=0.02,
        options=MOMENTUM, recipe={"passes": f"subnets:3{average}", **(ALL if average else {})},
        execution={"groups": groups},
    )  # fmt: skip


@pytest.mark.parametrize("groups", [1, long(2), 3, 4])
@pytest.mark.parametrize("passes", ["accumulate:8", "subnets:4:users"])
def test_a_tree_of_passes(tmp_path, monkeypatch, groups, passes):
    """Halves of halves, also where groups end within a half or passes leave no gradients."""
    restless(monkeypatch)
    check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(2,) if groups < 3 else (1,),
        steps=6, lr=0.02, options=MOMENTUM,
        recipe={"passes": passes, "reduction": "tree", **(ALL if groups == 2 else {})},
        execution={"groups": groups},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "stages", "more", "execution"),
    [
        long(4, 1, {"norms": "deferred"}, {"reduction_launch": "end"}),
        (4, 1, {"norms": "deferred", **ALL}, {"memory_budget": "0.001x"}),
        (2, 2, {**ALL}, {"memory_budget": "0.001x", "reduction_launch": "partition"}),
        long(3, 1, {"norms": "deferred"}, {"recompute": True, "window": 32}),
    ],
)
def test_a_tree_of_passes_however_it_is_carried_out(
    tmp_path, monkeypatch, groups, stages, more, execution
):
    """What norms leave is folded in the order of passes, in whichever order sums come."""
    restless(monkeypatch)
    if "memory_budget" not in execution:
        inject_delays(monkeypatch, groups)
    check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(stages,), steps=6, lr=0.02,
        options=MOMENTUM, recipe={"passes": "accumulate:8", "reduction": "tree", **more},
        execution={"groups": groups, **execution},
    )  # fmt: skip


def ragged(seed, number):
    """Batches of 2 to 6 items, of which the loss ignores the first two in every third batch."""
    batch = {name: each[: 2 + number % 5] for name, each in spaces.vectors(seed, number).items()}
    if number % 3 == 0:
        batch["target"] = batch["target"].clone()
        batch["target"][:1] = LOSS.ignore_index
    return batch


@pytest.mark.parametrize("passes", ["accumulate:4", "subnets:3:passes"])
@pytest.mark.parametrize("groups", [1, 2])
def test_passes_count_by_their_items(tmp_path, groups, passes):
    check(
        tmp_path, spaces.mixed(), ragged, LOSS, stages=(1, 2), steps=6, lr=0.02,
        recipe={"passes": passes, "weight": "items"}, execution={"groups": groups},
    )  # fmt: skip


@pytest.mark.parametrize("groups", [1, long(2), 3])
def test_fair_rounds(tmp_path, groups):
    """Each candidate of a block once in a step, all on one batch."""
    runs = check(
        tmp_path, spaces.mixed(), spaces.vectors, LOSS, stages=(1, 2), steps=6, lr=0.02,
        options=MOMENTUM, sampler="fair", recipe={"passes": "fair:4"},
        execution={"groups": groups},
    )  # fmt: skip
    stream = read_stream(runs[0].directory.stream)
    for first in range(0, len(stream), 4):
        for block in zip(*stream[first : first + 4], strict=True):
            assert sorted(block) == [0, 1, 2, 3]

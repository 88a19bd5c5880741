"""A loss that is infinite or not a number: the recipe's choice, the same on every stages."""

from __future__ import annotations

import math

import pytest
from torch import nn

import naspipe as npp
from naspipe.config.errors import NotFiniteError
from tests.equivalence import spaces
from tests.equivalence.harness import check
from tests.thinned import long

ENTROPY = nn.CrossEntropyLoss()
STEPS = 24


def is_bad(target):
    """Of about a fifth of the batches."""
    return int(target.sum()) % 5 == 0


def loss(outputs, target):
    return ENTROPY(outputs, target) * (math.inf if is_bad(target) else 1.0)


def bad_steps(seed):
    return [y for y in range(STEPS) if is_bad(spaces.vectors(seed, y)["target"])]


@pytest.mark.parametrize(
    ("nonfinite", "is_swapped", "stages"),
    [
        ("skip", False, (1, 4)),
        ("skip", True, (2,)),
        long("keep", False, (2,)),
        ("keep", True, (1, 4)),
    ],
)
def test_bits(tmp_path, nonfinite, is_swapped, stages):
    """Skipped: no parameter, optimizer state or average changes. Kept: as the plain loop."""
    execution = {"recompute": True, "memory_budget": "1.5x"} if is_swapped else {}
    runs = check(
        tmp_path, spaces.mixed(), spaces.vectors, loss, stages=stages, steps=STEPS, lr=0.01,
        optimizer="Adam", recipe={"nonfinite": nonfinite, "ema": 0.9}, execution=execution,
    )  # fmt: skip
    expected = bad_steps(1)
    assert 2 < len(expected) < 10
    for run in runs:
        found = run.manifest["measured"]["nonfinite_steps"]
        assert found == expected if nonfinite == "skip" else set(found) > set(expected)


@pytest.mark.parametrize("stages", [1, 2])
def test_stop(tmp_path, stages):
    with pytest.raises(
        NotFiniteError, match=r"subnet \d+: expected a finite loss, found inf; choose"
    ):
        npp.train(
            spaces.mixed(), spaces.vectors, loss, steps=STEPS, seed=1, stages=stages,
            run_dir=tmp_path / "run", execution={"max_restarts": 3},
        )  # fmt: skip
    assert npp.Run(spaces.mixed(), tmp_path / "run").manifest["life"]["generation"] == 0


def poisoned(seed, number):
    """From one step on, inputs of every kind that make NaNs of both signs."""
    batch = spaces.vectors(seed, number)
    kinds = (math.inf, -math.inf, math.nan, -math.nan, 3e38)
    if number >= 4:
        batch["input"][number % len(batch["input"]), ::3] = kinds[number % len(kinds)]
    return batch


def normed():
    def layer(size):
        return nn.Sequential(nn.Linear(16, size), nn.BatchNorm1d(size), nn.Linear(size, 16))

    return npp.Space(
        "normed",
        [
            npp.Shared("stem", lambda: layer(7)),
            npp.Block([lambda: layer(16), lambda: layer(33), nn.Identity]),
            npp.Block([lambda: nn.Sequential(nn.BatchNorm1d(16), nn.Tanh()), lambda: layer(9)]),
            npp.Shared("head", lambda: nn.Linear(16, 10)),
        ],
    )


@pytest.mark.parametrize("norms", ["ordered", "deferred"])
def test_kept_statistics_have_the_same_bits_everywhere(tmp_path, norms):
    """A NaN in running statistics has one sign and one payload, however the run is carried out."""
    ways = {
        "one": {"stages": 1},
        "three": {"stages": 3},
        "again": {"stages": 2, "execution": {"recompute": True}},
        "small": {"stages": 2, "execution": {"memory_budget": "1.2x"}},
        "groups": {"stages": 2, "groups": 2},
    }
    runs = {
        name: npp.train(
            normed(), poisoned, ENTROPY, steps=10, optimizer_options={"momentum": 0.9},
            recipe={"nonfinite": "keep", "norms": norms, "passes": "accumulate:2"},
            run_dir=tmp_path / name, **way,
        )
        for name, way in ways.items()
    }  # fmt: skip
    stem = runs["one"].shared("stem")
    assert stem[1].running_var.isnan().any()
    for found in npp.compare_runs([tmp_path / name for name in ways]):
        assert found.is_identical, str(found)

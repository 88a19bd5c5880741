"""A teacher has its student's recipe, but what only concerns training is not checked on it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.store.compare import compare_runs


def batches(seed, number, items=6):
    generator = torch.Generator().manual_seed(1000 * seed + number)
    return {
        "input": torch.randn(items, 4, generator=generator),
        "target": torch.randint(0, 3, (items,), generator=generator),
    }


def single(seed, number):
    return batches(seed, number, 1)


class SoftTargets:
    def __call__(self, output, target):
        return nn.functional.cross_entropy(output, target)

    def distill(self, output, taught, target):
        return self(output, target) + nn.functional.cross_entropy(output, taught.softmax(1))


class NearTheTeacher:
    fields = ()

    def distill(self, output, taught):
        return (output - taught).square().mean()


def student():
    options = [lambda: nn.Linear(8, 8), nn.Identity]
    return npp.Space(
        "student",
        [
            npp.Shared("stem", lambda: nn.Linear(4, 8)),
            npp.Block(options),
            npp.Shared("head", lambda: nn.Linear(8, 3)),
        ],
    )


def teacher(*middle):
    torch.manual_seed(0)
    return npp.Teacher([nn.Linear(4, 8), *middle, nn.Linear(8, 3)])


HEAD = {"parameter_groups": [{"match": "head.*", "lr_factor": 0.1}]}
NORMS = {"parameter_groups": [{"match": "norm", "lr_factor": 0.1}]}
DEFERRED = {"norms": "deferred"}
TRACKING = (nn.Unflatten(1, (1, 8)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten())


def train(path, labels, middle=(), data=batches, **more):
    return npp.train(
        student(), data, SoftTargets(), steps=6, lr=0.05, teacher=teacher(*middle),
        optimizer_options={"momentum": 0.9}, labels=labels, run_dir=path, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("middle", "data", "more"),
    [
        ((), batches, {"recipe": HEAD}),
        (TRACKING, batches, {"recipe": DEFERRED}),
        ((nn.BatchNorm1d(8),), single, {"passes": "accumulate:2", "groups": 2}),
    ],
    ids=["parameter_groups", "norms", "batches of one"],
)
def test_labels_from_everywhere_leave_the_same_bits(tmp_path, middle, data, more):
    paths = []
    for labels, stages in (("inline", 1), ("pipeline", 1), ("pipeline", 2)):
        paths.append(tmp_path / f"{labels}-{stages}")
        train(paths[-1], labels, middle, data, stages=stages, **more)
    if "recipe" in more:
        paths.append(tmp_path / "service")
        train(paths[-1], "service", middle, data, teachers=1, **more)
    for found in compare_runs(paths):
        assert found.is_identical, str(found)


def unlabelled(seed, number):
    return {"input": batches(seed, number)["input"]}


def negative(seed, number):
    batch = batches(seed, number)
    return {**batch, "target": batch["target"] - 2}


@pytest.mark.parametrize("data", [unlabelled, negative])
def test_cross_entropy_needs_no_target_with_a_lesson(tmp_path, data):
    """Neither in the training nor where layers are measured for a plan."""
    paths = [tmp_path / f"{labels}-{n}" for labels in ("pipeline", "inline") for n in (1, 2)]
    for path in paths:
        labels, _, stages = path.name.partition("-")
        npp.train(
            student(), data, nn.CrossEntropyLoss(), steps=6, teacher=teacher(), labels=labels,
            stages=int(stages), run_dir=path,
        )  # fmt: skip
    for found in compare_runs(paths):
        assert found.is_identical, str(found)


def test_a_weighted_average_needs_the_target_all_the_same(tmp_path):
    with pytest.raises(npp.ConfigError, match="batch 0: expected a tensor called 'target'"):
        npp.train(
            student(), unlabelled, nn.CrossEntropyLoss(), steps=2, teacher=teacher(),
            recipe={"passes": "accumulate:2", "weight": "items"}, run_dir=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("match", ["predictor.*", "norm"])
def test_groups_of_layers_that_a_momentum_teacher_does_not_have(tmp_path, match):
    predictor = npp.Shared("predictor", lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)))
    space = npp.Space("student", [*student().blocks, predictor])
    paths = [tmp_path / str(stages) for stages in (1, 2)]
    for stages, path in enumerate(paths, 1):
        npp.train(
            space, batches, NearTheTeacher(), steps=6, teacher=npp.Momentum(0.9), stages=stages,
            recipe={"parameter_groups": [{"match": match, "lr_factor": 0.1}]}, run_dir=path,
        )  # fmt: skip
    (found,) = compare_runs(paths)
    assert found.is_identical, str(found)


@pytest.mark.parametrize("labels", ["pipeline", "inline"])
def test_a_pattern_that_only_names_layers_of_the_teacher_is_refused(tmp_path, labels):
    middle = [nn.LayerNorm(8)]
    with pytest.raises(npp.ConfigError, match="match=norm to name parameters"):
        train(
            tmp_path / "run", labels, middle, recipe=NORMS
        )  # fmt: skip
    assert not (tmp_path / "run").exists()

"""What blocks of a distillation may be called with: the same on one stage and on several.

A planner measures the blocks where there are several stages. It must call losses and layers as the
run does.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from tests.equivalence.plain_blockwise import assert_blocks
from tests.thinned import long

SEED, LR, STEPS, ITEMS = 3, 0.05, 6, 6


def unlabelled(seed, number):
    generator = torch.Generator().manual_seed(1000 * seed + number)
    return {"input": torch.randn(ITEMS, 4, generator=generator)}


def tagged(seed, number):
    generator = torch.Generator().manual_seed(7 * seed + number)
    tag = torch.randint(0, 3, (ITEMS,), generator=generator)
    return {**unlabelled(seed, number), "tag": tag}


def negative(seed, number):
    """Labels that cross entropy against a target cannot take; against a lesson it needs none."""
    return {**unlabelled(seed, number), "target": torch.full((ITEMS,), -1)}


def labelled(seed, number):
    return {**unlabelled(seed, number), "target": tagged(seed, number)["tag"]}


class Pair(nn.Module):
    """Takes and hands on two tensors."""

    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, 8)

    def forward(self, x, *_):
        x = self.linear(x)
        return x, x.mean(1)


class End(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x, mean):
        return self.linear(x) + mean[:, None]


class Tagged(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.tags, self.linear = nn.Embedding(3, a), nn.Linear(a, b)

    def forward(self, x, tag):
        return self.linear(x + self.tags(tag))


class BothTensors:
    fields = ()

    def distill(self, x, mean, taught_x, taught_mean):
        return functional.mse_loss(x, taught_x) + functional.mse_loss(mean, taught_mean)


class WithTarget:
    """A loss that needs the target, but only with a lesson."""

    def __call__(self, output, target):
        raise RuntimeError("every pass has a lesson")

    def distill(self, output, taught, target):
        return functional.mse_loss(output, taught) + functional.cross_entropy(output, target)


def plain(make):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(4, 8), nn.ReLU()), make()]


def squares(outputs, lessons, _):
    return functional.mse_loss(outputs[0], lessons[0])


def both(outputs, lessons, _):
    return BothTensors().distill(*outputs, *lessons)


def scores(outputs, lessons, _):
    return functional.cross_entropy(outputs[0], lessons[0].softmax(1))


def with_target(outputs, lessons, target):
    return WithTarget().distill(outputs[0], lessons[0], target)


def tagged_students():
    """Fields in the first block, in a later one, and behind the first layer of one."""
    return [
        npp.Space("first", [npp.Block([lambda: Tagged(4, 8)], fields=["input", "tag"])]),
        npp.Space(
            "second",
            [
                npp.Block([lambda: Tagged(8, 8), lambda: Tagged(8, 8)], fields=["tag"]),
                npp.Shared("behind", lambda: Tagged(8, 3), fields=["tag"]),
            ],
        ),
    ]


def linear_students():
    return [nn.Linear(4, 8), nn.Linear(8, 3)]


ROWS = {
    "no labels": (plain(lambda: nn.Linear(8, 3)), linear_students, unlabelled, {}, scores),
    "labels of -1": (plain(lambda: nn.Linear(8, 3)), linear_students, negative, {}, scores),
    "a loss with labels": (
        plain(lambda: nn.Linear(8, 3)), linear_students, labelled, {"last_loss": WithTarget()},
        with_target,
    ),
    "two tensors": (
        [Pair(4), End()], lambda: [Pair(4), End()], unlabelled, {"loss": BothTensors()}, scores,
    ),
    "fields": (plain(lambda: nn.Linear(8, 3)), tagged_students, tagged, {}, scores),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "stages", "relay"),
    [
        *((name, stages, "decoupled") for name in ROWS for stages in (1, 2)),
        ("fields", 2, "apart"),
        long("two tensors", 2, "apart"),
    ],
)
def test_bits_of_the_plain_loop(tmp_path, name, stages, relay):
    teachers, students, data, more, last = ROWS[name]
    found = npp.distill_blockwise(
        teachers, students(), data, steps=STEPS, stages=stages, seed=SEED, lr=LR,
        run_dir=tmp_path / "run", relay=relay, **more,
    )  # fmt: skip
    losses = [both if "loss" in more else squares, last]
    assert_blocks(found, teachers, data, seed=SEED, losses=losses, lr=LR)


def test_a_layer_that_takes_the_target_is_not_rated(tmp_path):
    second = npp.Space("second", [npp.Block([lambda: Tagged(8, 3)], fields=["target"])])
    teachers, students = plain(lambda: nn.Linear(8, 3)), [nn.Linear(4, 8), second]
    found = npp.distill_blockwise(
        teachers, students, labelled, steps=2, run_dir=tmp_path / "run", lr=LR
    )
    with pytest.raises(npp.ConfigError, match=r"found layer 0\.0 of second; give the field"):
        npp.rate_blocks(found, labelled, validate=2)


def test_blocks_with_fields_are_rated(tmp_path):
    teachers, students, data, _, _ = ROWS["fields"]
    found = npp.distill_blockwise(
        teachers, students(), data, steps=12, run_dir=tmp_path / "run", lr=LR
    )
    ratings = npp.rate_blocks(found, data, validate=2)
    best = npp.combine_blocks(ratings)
    assert len(best.choices) == 2 and len(found.space(best.choices)) == 3

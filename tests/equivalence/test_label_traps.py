"""What could change a label without a word, and does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.distill import label_file
from tests.equivalence import spaces
from tests.equivalence.test_teachers import SEED, network, train

SERVICE = {"labels": "service", "teachers": 1, "label_audit": 0}


class OwnField:
    """A loss of a batch field that is called as the teacher's output might be."""

    fields = ("label",)

    def __call__(self, output, label):
        return nn.functional.cross_entropy(output, label)

    def distill(self, output, taught, label):
        soft = nn.functional.cross_entropy(output, taught.softmax(1))
        return soft + nn.functional.cross_entropy(output, label)


def with_label(seed, number):
    batch = spaces.vectors(seed, number)
    return {**batch, "label": batch["target"]}


def losses(tmp_path, name, data, loss, teacher=None, recipe=None, **execution):
    run = npp.train(
        spaces.mixed(), data, loss, steps=8, seed=SEED, lr=0.02, run_dir=tmp_path / name,
        teacher=teacher or npp.Teacher(network()), execution=execution, recipe=recipe,
    )  # fmt: skip
    return run.losses


def test_a_batch_field_of_the_same_name(tmp_path):
    found = [
        losses(tmp_path, each, with_label, OwnField(), labels=each)
        for each in ("pipeline", "inline")
    ]
    assert found[0] == found[1]


def drawn(seed, number):
    """Data that draw from torch's own generator, as some do."""
    torch.manual_seed(seed * 1000 + number)
    inputs = torch.randn(12, 16)
    for _ in range(50):  # time for another thread
        inputs = inputs + 0.01 * torch.randn(12, 16)
    return {"input": inputs, "target": torch.randint(10, (12,))}


@pytest.mark.parametrize("inputs", ["numbers", "sent"])
def test_data_that_draw_are_made_on_one_thread(tmp_path, inputs):
    loss = npp.losses.SoftTarget(temperature=2.0, weight=0.5)
    found = losses(tmp_path, "service", drawn, loss, **SERVICE, teacher_inputs=inputs)
    assert found == losses(tmp_path, "pipeline", drawn, loss)


class Draws(nn.Linear):
    """A layer that draws in evaluation mode, too."""

    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5)


@pytest.mark.parametrize(
    ("passes", "execution"), [("one", SERVICE), ("fair:3", {"labels": "inline"})]
)
def test_a_teacher_that_draws(tmp_path, passes, execution):
    teacher = npp.Teacher([Draws(16, 10)])
    with pytest.raises(npp.ConfigError, match="draws nothing in evaluation mode"):
        losses(
            tmp_path, "run", spaces.vectors, nn.CrossEntropyLoss(), teacher, {"passes": passes},
            **execution,
        )  # fmt: skip


def test_a_teacher_that_draws_computed_inline(tmp_path):
    """Where each batch has one pass, its draws are those of the pass."""
    teacher = npp.Teacher([Draws(16, 10)])
    found = [
        losses(
            tmp_path,
            each,
            spaces.vectors,
            nn.CrossEntropyLoss(),
            teacher,
            {"passes": "accumulate:2"},
            labels=each,
        )
        for each in ("pipeline", "inline")
    ]
    assert found[0] == found[1]


def test_labels_of_other_threads(tmp_path):
    path = tmp_path / "labels"
    recipe = npp.config.recipe.Recipe(threads=2)
    npp.write_labels(
        npp.Teacher(network()), spaces.vectors, path, batches=12, seed=SEED, recipe=recipe
    )
    assert label_file.LabelFile(path).key["threads"] == 2
    with pytest.raises(npp.ConfigError, match=r"expected those of threads 1 in .*, found 2"):
        train(tmp_path / "run", 1, execution={"labels": f"file:{path}"})


def test_fair_rounds_share_a_label(tmp_path):
    found = [
        losses(
            tmp_path,
            name,
            spaces.vectors,
            nn.CrossEntropyLoss(),
            recipe={"passes": "fair:3"},
            **execution,
        )
        for name, execution in (
            ("pipeline", {}),
            ("inline", {"labels": "inline"}),
            ("service", SERVICE),
        )
    ]
    assert found[0] == found[1] == found[2]

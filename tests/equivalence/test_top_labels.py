"""Labels of the K greatest scores: a teacher of its own, with the bits of a plain loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.distill.label_file import LabelFile
from naspipe.losses.top_target import split_top, top_classes
from naspipe.store.compare import compare_runs
from naspipe.streams.stream_file import read_stream
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, oracle_of, plain_torch
from tests.equivalence.test_teachers import LR, SEED, network

TOP, T, WEIGHT = 3, 2.0, 0.5
LOSS = npp.losses.TopTarget(temperature=T, weight=WEIGHT)


def train(path, stages=1, steps=12, top=TOP, loss=LOSS, **execution):
    return npp.train(
        spaces.mixed(), spaces.vectors, loss, steps=steps, seed=SEED, lr=LR,
        optimizer_options={"momentum": 0.9}, stages=stages, run_dir=path, execution=execution,
        teacher=npp.Teacher(network(), top=top),
    )  # fmt: skip


def greatest(row):
    """Of one sample, by score and then by class."""
    return sorted(range(len(row)), key=lambda each: (-row[each], each))[:TOP]


def plain_loop(run):
    teacher = network().eval()
    loop = oracle_of(run.space, SEED, "SGD", LR, {"momentum": 0.9})
    with plain_torch():
        for step, choices in enumerate(read_stream(run.directory.stream)):
            batch = spaces.vectors(SEED, step)
            with torch.no_grad():
                scores = teacher(batch["input"])
            classes = torch.tensor([greatest(row) for row in scores.tolist()])
            kept = functional.log_softmax(scores.gather(-1, classes) / T, -1)

            def loss(output, target, kept=kept, classes=classes):
                own = functional.log_softmax(output / T, -1).gather(-1, classes)
                soft = (kept.exp() * (kept - own)).sum(-1).mean()
                return functional.cross_entropy(output, target) + soft * (WEIGHT * T * T)

            loop.take(step, [(run.space.chain(choices), batch)], loss, averages_loss=True)
    return loop


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("source", ["pipeline", "inline", "file", "service"])
def test_the_bits_of_a_plain_loop_from_every_source(tmp_path, stages, source):
    how = {"labels": source, "teachers": 2 * (source == "service")}
    if source == "file":
        path = tmp_path / "labels"
        npp.write_labels(
            npp.Teacher(network(), top=TOP), spaces.vectors, path, batches=12, seed=SEED
        )
        assert LabelFile(path).label(0).shape == (12, 2, TOP)
        how["labels"] = f"file:{path}"
    run = train(tmp_path / "run", stages, **how)
    assert_same_bits(run, plain_loop(run))
    assert run.manifest["definition"]["teacher"].endswith(f"/top:{TOP}")


def test_runs_of_other_ks_are_not_compared(tmp_path):
    for top in (3, 4):
        train(tmp_path / f"{top}", steps=2, top=top)
    (found,) = compare_runs([tmp_path / "3", tmp_path / "4"])
    assert "teacher" in found.reason and not found.is_identical


def test_ties_go_to_the_lower_class():
    scores = torch.tensor([[0.5, 2.0, -1.0, 2.0, 2.0], [-0.0, 0.0, -0.0, -3.0, 0.0]])
    values, classes = split_top(top_classes(scores, 3))
    assert values.tolist() == [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0]]
    assert classes.tolist() == [[1, 3, 4], [0, 1, 2]]
    assert torch.signbit(values[1]).tolist() == [True, False, True]


def test_all_classes_are_the_whole_divergence():
    torch.manual_seed(1)
    output, scores, target = torch.randn(6, 9), torch.randn(6, 9), torch.randint(0, 9, (6,))
    whole = npp.losses.SoftTarget(temperature=T, weight=WEIGHT).distill(output, scores, target)
    torch.testing.assert_close(LOSS.distill(output, top_classes(scores, 9), target), whole)


def test_padding_does_not_count():
    torch.manual_seed(1)
    output, scores = torch.randn(2, 4, 9), torch.randn(2, 4, 9)
    target = torch.tensor([[3, 4, 1, 1], [2, 5, 6, 1]])

    class OfTokens(nn.Module):
        padding = 1

        def forward(self, output, target):
            return functional.cross_entropy(
                output.flatten(0, 1), target.flatten(), ignore_index=self.padding
            )

    label, loss = top_classes(scores, 4), npp.losses.TopTarget(OfTokens())
    found = loss.distill(output, label, target)
    changed = torch.where((target == 1)[..., None], torch.randn(2, 4, 9), output)
    torch.testing.assert_close(loss.distill(changed, label, target), found)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"top": 0}, "expected a teacher with top=K, found a loss TopTarget and top=0"),
        ({"loss": npp.losses.SoftTarget()}, "expected TopTarget, as for top=K, found a loss Soft"),
        ({"top": -1}, "expected top of 0 classes or more, found -1"),
        ({"top": 11}, "expected 11 classes or more, as top=11 says, .* found 10"),
    ],
)
def test_what_is_refused(tmp_path, more, text):
    with pytest.raises(npp.ConfigError, match=text) as caught:
        train(tmp_path / "run", **more)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_a_teacher_of_other_classes_is_refused(tmp_path):
    teacher = npp.Teacher([nn.Linear(16, 7)], top=TOP)
    with pytest.raises(npp.ConfigError, match=r"of shape .*, 10.*found .*, 7"):
        npp.train(
            spaces.mixed(), spaces.vectors, LOSS, steps=2, run_dir=tmp_path / "run",
            teacher=teacher,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()

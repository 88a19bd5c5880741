"""Label smoothing by a field of the recipe: torch's own, for losses that take it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
import search_spaces
from naspipe.jobs.losses import distilling, smoothed
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, plain_loop


@pytest.mark.parametrize("stages", [1, 2])
def test_bits_of_the_plain_loop_with_torch_s_smoothing(tmp_path, stages):
    run = npp.train(
        spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=8, seed=1, stages=stages,
        run_dir=tmp_path / "run", recipe={"label_smoothing": 0.1},
    )  # fmt: skip
    loops = [
        plain_loop(run.space, spaces.vectors, loss, run, seed=1, optimizer="SGD", lr=0.05)
        for loss in (nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss())
    ]
    assert_same_bits(run, loops[0])
    with pytest.raises(AssertionError, match="first loss that differs: subnet 0"):
        assert_same_bits(run, loops[1])


def test_the_losses_of_named_spaces_take_it():
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 5, 9, generator=draw)
    words = torch.randint(2, 9, (2, 5), generator=draw)
    loss = search_spaces.defaults("nlp.c1", "tiny").loss()
    expected = nn.functional.cross_entropy(
        scores.flatten(0, 1), words.flatten(), label_smoothing=0.2, ignore_index=loss.padding
    )
    assert torch.equal(smoothed(loss, 0.2)(scores, words), expected)
    assert loss.label_smoothing == 0.0, "another run may use it"
    assert smoothed(search_spaces.defaults("cv.c1", "tiny").loss(), 0.2).label_smoothing == 0.2


def test_a_loss_that_cannot_take_it_is_refused(tmp_path):
    def squared(output, target):
        return output.square().mean()

    with pytest.raises(npp.ConfigError, match=r"label_smoothing=0.1: expected a loss .*squared"):
        npp.train(
            spaces.mixed(), spaces.vectors, squared, steps=2, run_dir=tmp_path / "run",
            recipe={"label_smoothing": 0.1},
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_words_are_learnt_from_another_subnet_where_there_are_words():
    draw = torch.Generator().manual_seed(0)
    scores, taught = torch.randn(2, 2, 5, 9, generator=draw).unbind()
    loss = search_spaces.defaults("nlp.c1", "tiny").loss()
    words = torch.randint(2, 9, (2, 5), generator=draw)
    words[1, 3:] = loss.padding
    kept = words.flatten() != loss.padding
    expected = nn.functional.cross_entropy(
        scores.flatten(0, 1)[kept], taught.flatten(0, 1)[kept].softmax(-1)
    )
    found = distilling(loss)(scores, taught, words)
    assert torch.allclose(found, expected, rtol=1e-6)
    images = search_spaces.defaults("cv.c1", "tiny").loss()
    assert torch.isfinite(distilling(images)(scores[0], taught[0], words[0]))

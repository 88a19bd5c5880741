"""A loss that remembers is found as it does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.worker.blocks.guards import LossState
from tests.equivalence import spaces


class Centred(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
        self.how = how

    def forward(self, output):
        if self.how == "in place":
            self.centre.mul_(0.9).add_(output)
        elif self.how == "anew":
            self.centre = self.centre * 0.9 + output
        return (output - self.centre).sum()


@pytest.mark.parametrize("how", ["in place", "anew"])
def test_one_that_remembers_is_refused(how):
    loss = Centred(how)
    with (
        pytest.raises(ConfigError, match=r"^loss Centred: .* change its buffer centre; keep it"),
        LossState(loss).left_as_it_is(),
    ):
        loss(torch.ones(3))


def test_one_that_does_not_is_let_be():
    loss = Centred("")
    with LossState(loss).left_as_it_is():
        loss(torch.ones(3))
    with LossState(lambda output: output).left_as_it_is():
        pass


class Tempered(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, output, target):
        return nn.functional.cross_entropy(output * self.scale, target)


def test_one_with_frozen_parameters_is_no_layer(tmp_path):
    run = npp.train(spaces.mixed(), spaces.vectors, Tempered(), steps=1, run_dir=tmp_path / "run")
    assert "loss" not in run.space.labels


def test_one_that_no_gradient_goes_back_from_is_refused(tmp_path):
    with pytest.raises((ConfigError, npp.StageFailedError), match="gradients go back from"):
        npp.train(
            spaces.mixed(), spaces.vectors,
            lambda output, target: nn.functional.cross_entropy(output.detach(), target),
            steps=1, run_dir=tmp_path / "run",
        )  # fmt: skip


class Stops(nn.Linear):
    def __init__(self, how):
        super().__init__(24, 10)
        self.how = how

    def forward(self, x):
        if self.how == "detach":
            return super().forward(x).detach()
        with torch.no_grad():
            return super().forward(x)


@pytest.mark.parametrize("how", ["detach", "no_grad"])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_last_layer_that_no_gradient_goes_back_from_is_refused(tmp_path, how, stages):
    """A plain loop raises in its backward; the run would train nothing."""
    network = npp.chain([nn.Linear(16, 24), Stops(how)])
    with pytest.raises((ConfigError, npp.StageFailedError), match=r"layer 1.0 \(Stops\).*go back"):
        npp.train(
            network, spaces.vectors, nn.CrossEntropyLoss(), steps=1, stages=stages,
            run_dir=tmp_path / "run",
        )  # fmt: skip


def test_a_run_inside_inference_mode_is_refused(tmp_path):
    with torch.inference_mode(), pytest.raises(ConfigError, match=r"torch\.inference_mode"):
        npp.train(
            spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=1,
            run_dir=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()

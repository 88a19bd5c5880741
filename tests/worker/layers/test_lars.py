"""LARS is algorithm 1 of its paper, and works per layer as over all."""

from __future__ import annotations

import pytest
import torch

from naspipe.checks.optimizer import check_optimizer
from naspipe.config.errors import ConfigError
from naspipe.config.recipe import Recipe
from naspipe.worker.layers.optimizers import LARS


def test_the_scale_is_that_of_the_paper():
    """You et al. 2017, section 4: of AlexNet |w| / |g| is 5.76 for conv1 and 1,345 for fc6."""
    for ratio in (5.76, 1345.0):
        weight = torch.nn.Parameter(torch.full((4, 4), 0.25))
        before = weight.detach().clone()
        weight.grad = torch.full((4, 4), 0.25 / ratio)
        LARS([weight], lr=2.0, momentum=0.9, trust=0.001).step()
        moved = (before - weight.detach()).norm() / weight.grad.norm()
        assert float(moved) == pytest.approx(2.0 * 0.001 * ratio, rel=1e-4)


def test_two_steps_by_hand():
    weight, bias = torch.nn.Parameter(torch.tensor([[3.0, 4.0]])), torch.nn.Parameter(torch.ones(2))
    optimizer = LARS([weight, bias], lr=0.5, momentum=0.9, weight_decay=0.1, trust=0.01)
    w, v, b, u = [3.0, 4.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]
    for gradient in ([0.6, 0.8], [1.0, 0.0]):
        weight.grad, bias.grad = torch.tensor([gradient]), torch.tensor(gradient)
        optimizer.step()
        norm = (w[0] ** 2 + w[1] ** 2) ** 0.5
        scale = 0.01 * norm / ((gradient[0] ** 2 + gradient[1] ** 2) ** 0.5 + 0.1 * norm)
        for i in range(2):
            v[i] = 0.9 * v[i] + 0.5 * scale * (gradient[i] + 0.1 * w[i])
            u[i] = 0.9 * u[i] + 0.5 * gradient[i]
            w[i], b[i] = w[i] - v[i], b[i] - u[i]
    assert weight.tolist()[0] == pytest.approx(w)
    assert bias.tolist() == pytest.approx(b)


def test_one_per_layer_has_the_bits_of_one_over_all():
    torch.manual_seed(1)
    together = [torch.nn.Parameter(torch.randn(3, 3)) for _ in range(2)]
    apart = [torch.nn.Parameter(each.detach().clone()) for each in together]
    optimizers = [LARS(together), *(LARS([each]) for each in apart)]
    for _ in range(3):
        for one, other in zip(together, apart, strict=True):
            one.grad = torch.randn(3, 3)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(together, apart, strict=True))


def test_its_options_are_looked_at():
    check_optimizer(Recipe(optimizer="LARS", optimizer_options={"trust": 0.01}))
    with pytest.raises(ConfigError, match="has no option 'nesterov'"):
        check_optimizer(Recipe(optimizer="LARS", optimizer_options={"nesterov": True}))
    with pytest.raises(ConfigError, match="expected numbers of 0 or more"):
        check_optimizer(Recipe(optimizer="LARS", optimizer_options={"trust": -1.0}))

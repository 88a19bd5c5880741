"""A layer's weights and its architecture parameters have an optimizer each, and one state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from naspipe.checks.optimizer import check_optimizer
from naspipe.config.errors import ConfigError
from naspipe.config.recipe import Recipe
from naspipe.mixed import Alpha
from naspipe.mixed.architecture import WithAlphas, alpha_optimizer
from naspipe.worker.layers.layout import StateSizes
from naspipe.worker.layers.optimizers import make_optimizer

SGD = Recipe(optimizer="SGD", lr=0.5, optimizer_options={"momentum": 0.9, "weight_decay": 0.1})


def made(recipe):
    torch.manual_seed(1)
    weight, alpha = nn.Parameter(torch.randn(3, 3)), Alpha(torch.zeros(4))
    return weight, alpha, make_optimizer(recipe, [weight, alpha])


@pytest.mark.parametrize("name", ["SGD", "Adam", "LARS"])
def test_each_steps_alone(name):
    weight, alpha, optimizer = made(Recipe(optimizer=name, lr=0.5))
    twin, other = nn.Parameter(weight.detach().clone()), nn.Parameter(torch.zeros(4))
    one = make_optimizer(Recipe(optimizer=name, lr=0.5), [twin])
    two = torch.optim.Adam([other], lr=1e-3, betas=(0.0, 0.999))
    for step in range(6):
        optimizer.param_groups[0]["lr"] = one.param_groups[0]["lr"] = 0.1 * (step + 1)
        mine, its, stepped = (alpha, other, two) if step % 3 == 2 else (weight, twin, one)
        mine.grad = torch.randn_like(mine)
        its.grad = mine.grad.clone()
        before = [each.detach().clone() for each in (weight, alpha)]
        optimizer.step()
        stepped.step()
        mine.grad = its.grad = None
        unmoved = weight if mine is alpha else alpha
        assert any(torch.equal(unmoved, each) for each in before if each.shape == unmoved.shape)
    assert torch.equal(weight, twin) and torch.equal(alpha, other)
    assert set(optimizer.state[weight]) == set(one.state[twin])
    assert set(optimizer.state[alpha]) == {"step", "exp_avg", "exp_avg_sq"}


def test_a_state_that_is_put_there_goes_on():
    _, alpha, optimizer = made(SGD)
    alpha.grad = torch.ones(4)
    optimizer.step()
    _, beta, again = made(SGD)
    beta.data.copy_(alpha.detach())
    for key, value in optimizer.state[alpha].items():
        again.state[beta][key] = value.clone()
    for each, steps in ((alpha, optimizer), (beta, again)):
        each.grad = torch.full((4,), 2.0)
        steps.step()
    assert torch.equal(alpha, beta) and int(again.state[beta]["step"]) == 2


class EarlyAdagrad(torch.optim.Adagrad):
    """As torch has it up to 2.12: its state is there before its first step."""

    def __init__(self, weights, **options):
        super().__init__(weights, **options)
        for weight in weights:
            self.state[weight] |= {"sum": torch.ones_like(weight), "step": torch.tensor(0.0)}


def test_a_state_that_is_made_in_a_constructor_is_kept():
    weight, twin = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    alpha = Alpha(torch.ones(2))
    one = EarlyAdagrad([twin], lr=0.5)
    both = WithAlphas(EarlyAdagrad([weight], lr=0.5), alpha_optimizer([alpha]))
    weight.grad, twin.grad = torch.ones(3), torch.ones(3)
    one.step()
    both.step()
    assert torch.equal(weight, twin)
    assert torch.equal(both.state[weight]["sum"], torch.full((3,), 2.0))


def test_sizes_are_those_of_each():
    sizes = StateSizes(SGD)
    assert dict(sizes.of(nn.Parameter(torch.zeros(4)))) == {"momentum_buffer": 16}
    assert dict(sizes.of(Alpha(torch.zeros(4)))) == {"exp_avg": 16, "exp_avg_sq": 16}


def test_a_layer_may_have_nothing_but_alphas():
    alpha = Alpha(torch.zeros(4))
    optimizer = make_optimizer(SGD, [alpha])
    optimizer.param_groups[0]["lr"] = 9.0
    alpha.grad = torch.ones(4)
    optimizer.step()
    torch.testing.assert_close(alpha.detach(), torch.full((4,), -1e-3))


def test_its_options_are_looked_at():
    options = {"momentum": 0.9, "alpha_lr": 0.01, "alpha_betas": [0.5, 0.9]}
    recipe = Recipe(optimizer="SGD", optimizer_options=options)
    check_optimizer(recipe)
    _, _, optimizer = made(recipe)
    assert optimizer.param_groups[1]["lr"] == 0.01
    assert tuple(optimizer.param_groups[1]["betas"]) == (0.5, 0.9)
    for wrong in ({"alpha_lr": -1.0}, {"alpha_betas": 0.5}, {"alpha_betas": [0.5, 1.5]}):
        with pytest.raises(ConfigError, match="optimizer SGD: expected options") as caught:
            check_optimizer(Recipe(optimizer="SGD", optimizer_options=wrong))
        assert "\n" not in str(caught.value)

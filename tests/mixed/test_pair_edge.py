"""Two sampled paths: gradients are those of their gates, and the others are left alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from naspipe.config.recipe import Recipe
from naspipe.mixed import Alpha, PairEdge
from naspipe.mixed.architecture import ARCHITECTURE, WEIGHTS
from naspipe.worker.layers.optimizers import make_optimizer

START = [0.4, -0.3, 0.1, 1.2]


def edge(**more):
    torch.manual_seed(3)
    candidates = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in START]
    made = PairEdge(candidates, **more)
    with torch.no_grad():
        made.alpha.copy_(torch.tensor(START))
    return made


def learn(made, seed, x):
    torch.manual_seed(seed)
    output = made(x, torch.tensor(ARCHITECTURE))
    (output[0] if isinstance(output, tuple) else output).tanh().pow(2).sum().backward()
    return output


def ran(made):
    return [n for n, each in enumerate(made.candidates) if int(each[1].num_batches_tracked)]


@pytest.mark.parametrize("seed", range(6))
def test_the_gradient_is_that_of_two_gates(seed):
    made, x = edge().double(), torch.randn(5, 4, dtype=torch.float64)
    plain = copy.deepcopy(made)
    output = learn(made, seed, x)
    pair = ran(made)
    assert len(pair) == 2 and all(p.grad is None for p in made.candidates.parameters())
    outputs = torch.stack([plain.candidates[each](x) for each in pair]).detach()
    (active,) = (n for n in range(2) if torch.equal(output, outputs[n]))
    gates = nn.functional.one_hot(torch.tensor(active), 2).double().requires_grad_()
    loss = (gates[:, None, None] * outputs).sum(0).tanh().pow(2).sum()
    (of_gates,) = torch.autograd.grad(loss, gates)
    shares = torch.tensor(START, dtype=torch.float64)[pair]
    jacobian = torch.autograd.functional.jacobian(lambda a: a.softmax(0), shares)
    torch.testing.assert_close(made.alpha.grad[pair], of_gates @ jacobian)
    others = [n for n in range(4) if n not in pair]
    assert made.alpha.grad[others].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("seed", range(3))
def test_path_weights_of_the_others_stay(seed):
    made, x = edge(), torch.randn(5, 4)
    optimizer = make_optimizer(Recipe(optimizer_options={"alpha_lr": 0.3}), made.parameters())
    learn(made, seed, x)
    optimizer.step()
    pair, before = ran(made), torch.tensor(START)
    others = [n for n in range(4) if n not in pair]
    assert torch.equal(made.alpha[others], before[others])
    torch.testing.assert_close(made.alpha.softmax(0)[others], before.softmax(0)[others])
    assert (made.alpha[pair] - before[pair]).abs().min() > 0.01


def test_an_alpha_keeps_its_kind():
    made = copy.deepcopy(edge()).double()
    assert isinstance(made.alpha, Alpha) and type(made.alpha) is PairEdge.kind


def test_draws_are_those_of_two_without_replacement():
    """By their frequencies: a pair, and which of it is the output."""
    made, x, counts = edge(), torch.randn(5, 4), torch.zeros(4, 4)
    p, outputs = torch.tensor(START).softmax(0), [each(x) for each in edge().candidates]
    for seed in range(500):
        fresh = copy.deepcopy(made)
        output = learn(fresh, seed, x)
        one, other = ran(fresh)
        is_one = torch.equal(output, outputs[one])
        counts[(one, other) if is_one else (other, one)] += 1
    for a in range(4):
        for b in set(range(4)) - {a}:
            both = p[a] * p[b] * (1 / (1 - p[a]) + 1 / (1 - p[b]))
            expected = both * p[a] / (p[a] + p[b])
            assert float(counts[a, b]) / 500 == pytest.approx(float(expected), abs=0.06)


def test_costs_are_expected_of_the_two():
    table = [100.0, 20.0, 0.0, 7.0]
    made, x = edge(operations=table), torch.randn(5, 4)
    _, cost = learn(made, 1, x)
    pair = ran(made)
    shares = torch.tensor(START)[pair].softmax(0)
    torch.testing.assert_close(cost.detach(), (shares * torch.tensor(table)[pair]).sum())
    (of_alpha,) = torch.autograd.grad(cost, made.alpha)
    assert (of_alpha != 0).nonzero().flatten().tolist() == pair
    made(x, torch.tensor(WEIGHTS))

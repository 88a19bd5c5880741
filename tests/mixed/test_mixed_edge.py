"""A mixed edge's gradients are those of gates; each round touches what it says."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.mixed import Alpha, MixedEdge
from naspipe.mixed.architecture import ARCHITECTURE, WEIGHTS

KINDS = {kind: torch.tensor(kind) for kind in (WEIGHTS, ARCHITECTURE)}


def edge(**more):
    torch.manual_seed(3)
    candidates = [
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 4), nn.Identity(),
    ]  # fmt: skip
    made = MixedEdge(candidates, **more)
    with torch.no_grad():
        made.alpha.copy_(torch.tensor([0.4, -0.3, 0.1]))
    return made


def loss_of(output):
    return (output * torch.linspace(-1, 2, output.numel()).view_as(output)).tanh().pow(2).sum()


def drawn_by(made, seed):
    torch.manual_seed(seed)
    return int(torch.multinomial(made.alpha.detach().softmax(0), 1))


@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_is_that_of_gates(seed):
    """Of y = sum of g[i] * y[i] by autograd and by finite differences, through softmax's own."""
    made, x = edge().double(), torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    plain, drawn = copy.deepcopy(made), drawn_by(made, seed)
    torch.manual_seed(seed)
    loss_of(made(x, KINDS[ARCHITECTURE])).backward()

    outputs = torch.stack([candidate(x.detach()) for candidate in plain.candidates]).detach()
    gates = nn.functional.one_hot(torch.tensor(drawn), 3).double().requires_grad_()

    def mixed(g):
        return loss_of((g[:, None, None] * outputs).sum(0))

    (of_gates,) = torch.autograd.grad(mixed(gates), gates)
    near = [(mixed(gates + e) - mixed(gates - e)) / 2e-6 for e in 1e-6 * torch.eye(3).double()]
    torch.testing.assert_close(torch.stack(near).detach(), of_gates, rtol=1e-5, atol=1e-7)
    jacobian = torch.autograd.functional.jacobian(lambda a: a.softmax(0), plain.alpha.detach())
    torch.testing.assert_close(made.alpha.grad, of_gates @ jacobian)

    alone = x.detach().clone().requires_grad_()
    loss_of(plain.candidates[drawn](alone)).backward()
    torch.testing.assert_close(x.grad, alone.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_round_touches(kind):
    made, x = edge(), torch.randn(5, 4)
    drawn = drawn_by(made, 1)
    torch.manual_seed(1)
    output = made(x, KINDS[kind])
    output.sum().backward()
    graded = {name for name, p in made.named_parameters() if p.grad is not None}
    tracked = int(made.candidates[0][1].num_batches_tracked)
    if kind == ARCHITECTURE:
        assert graded == {"alpha"} and tracked == 1
    else:
        of_drawn = {
            f"candidates.{drawn}.{name}" for name, _ in made.candidates[drawn].named_parameters()
        }
        assert graded == of_drawn and tracked == (drawn == 0)
    again = copy.deepcopy(edge()).candidates[drawn]
    assert torch.equal(output.detach(), again(x).detach())


def test_one_candidate_is_a_layer_without_a_choice():
    only = MixedEdge([nn.Linear(4, 4)])
    x = torch.randn(5, 4, requires_grad=True)
    assert only.alpha is None and only.path == 0
    only(x, KINDS[ARCHITECTURE]).sum().backward()
    assert x.grad is not None and all(p.grad is None for p in only.parameters())
    only(x, KINDS[WEIGHTS]).sum().backward()
    assert all(p.grad is not None for p in only.parameters())


def test_alone_it_is_what_it_has_chosen():
    made = edge()
    with torch.no_grad():
        made.alpha[1] = 2.0
    x = torch.randn(5, 4)
    assert made.path == 1 and made.chosen is made.candidates[1]
    for each in (made, copy.deepcopy(made).eval()):
        assert torch.equal(each(x), made.chosen(x))
    assert torch.equal(made.eval()(x, KINDS[ARCHITECTURE]), made.chosen(x))
    assert isinstance(copy.deepcopy(made).double().alpha, Alpha)


def test_costs_are_expected_ones():
    table = [100.0, 20.0, 0.0]
    first, last = edge(operations=table), edge(operations=table, reference=50.0)
    x = torch.randn(5, 4)
    output, before = first(x, KINDS[ARCHITECTURE])
    _, cost = last(output, before, KINDS[ARCHITECTURE])
    cost.backward()
    alpha = first.alpha.detach().clone().requires_grad_()
    expected = (2 * alpha.softmax(0) * torch.tensor(table)).sum()
    wanted = expected.log() / math.log(50.0)
    wanted.backward()
    torch.testing.assert_close(cost, wanted)
    torch.testing.assert_close(first.alpha.grad + last.alpha.grad, alpha.grad)
    _, cost = first(x, KINDS[WEIGHTS])
    assert not cost.requires_grad


def test_bad_input_is_one_line():
    for options, text in (
        ({"operations": [1.0, 2.0]}, "operations of each candidate, found 2 for 3 candidates"),
        ({"reference": 50.0}, "found 50.0 and no table"),
        ({"operations": [1.0, 2.0, 3.0], "reference": 1.0}, "a reference above 1"),
    ):
        with pytest.raises(ConfigError, match=text) as caught:
            edge(**options)
        assert "\n" not in str(caught.value)

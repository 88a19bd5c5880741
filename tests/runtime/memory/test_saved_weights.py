"""What autograd saves of weights: found again wherever they are, and never edited unseen."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from naspipe.runtime.memory.saved_weights import found_again, num_holders
from tests.oracle import bits


class Layer(nn.Module):
    """Uses a weight whole, turned round, in parts and spread."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))
        self.turned = nn.Parameter(torch.randn(4, 4).t())
        self.scale = nn.Parameter(torch.randn(1))

    def forward(self, x):
        first, second = self.weight.chunk(2)
        hidden = (x @ first.t() * (x @ second.t()).exp()) @ first
        return (hidden @ self.turned).tanh() * self.scale.expand(4)


def rebind(layer):
    """To other memory; the old one is spoilt."""
    for parameter in layer.parameters():
        old = parameter.data
        parameter.data = old.clone()
        old.fill_(float("nan"))


def gradients(layer, x, moves):
    with found_again(layer.parameters(), ()):
        output = layer(x)
    if moves:
        rebind(layer)
    output.square().sum().backward()
    found = [bits(each.grad) for each in (x, *layer.parameters())]
    for each in (x, *layer.parameters()):
        each.grad = None
    return found


def test_a_backward_takes_weights_as_they_are_found_then():
    torch.manual_seed(1)
    layer, x = Layer(), torch.randn(3, 4, requires_grad=True)
    with torch.no_grad():
        layer.turned.data = layer.turned.data.t().clone().t()
    layer(x).square().sum().backward()
    plain = [bits(each.grad) for each in (x, *layer.parameters())]
    for each in (x, *layer.parameters()):
        each.grad = None
    assert gradients(layer, x, False) == plain
    assert gradients(layer, x, True) == plain


def test_nothing_holds_their_memory_but_what_autograd_does_not_know():
    memory = torch.empty(2048, dtype=torch.uint8)
    alone = num_holders(memory)
    layer = nn.Linear(4, 4, bias=False)
    layer.weight.data = memory.view(torch.float32).as_strided((4, 4), (4, 1), 0)
    x = torch.randn(3, 4, requires_grad=True)
    with found_again(layer.parameters(), ()):
        output = layer(x).exp()
    layer.weight.data = torch.randn(4, 4)
    assert num_holders(memory) == alone
    layer.weight.data = memory.view(torch.float32).as_strided((4, 4), (4, 1), 0)
    kept = layer(x)
    layer.weight.data = torch.randn(4, 4)
    assert num_holders(memory) > alone
    del kept
    assert num_holders(memory) == alone
    output.sum().backward()


@pytest.mark.parametrize("what", ["output", "input", "weight"])
def test_what_was_edited_is_refused_as_by_torch(what):
    """With hooks torch itself does not look."""
    layer = nn.Linear(4, 4)
    x = torch.randn(3, 4, requires_grad=True)
    with found_again(layer.parameters(), ()):
        hidden = x * 2
        output = layer(hidden).exp()
    with torch.no_grad():
        {"output": output, "input": hidden, "weight": layer.weight}[what].mul_(2)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        output.sum().backward()


def test_tensors_of_one_memory_that_count_for_themselves_are_kept():
    """Of ``data`` nobody knows how often it was edited."""
    layer = nn.Linear(4, 4, bias=False)
    x = torch.randn(3, 4, requires_grad=True)
    with torch.no_grad():
        layer.weight.mul_(2)  # its counter is not that of its data
    with found_again(layer.parameters(), ()):
        output = x @ layer.weight.data
    expected = torch.ones(3, 4) @ layer.weight.detach().t().clone()
    rebind_to = layer.weight.detach().clone()
    layer.weight.data = rebind_to * 3
    output.sum().backward()
    assert bits(x.grad) == bits(expected)

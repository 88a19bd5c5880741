"""Layers without memory are made without drawing, and are the same otherwise."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from naspipe.checks.sketched import Unfilled


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, 4))
        self.found = nn.init.trunc_normal_(self.weight, std=0.1) is self.weight
        self.bias = nn.Parameter(torch.empty(3).uniform_(-1, 1))
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.Conv2d(3, 3, 3), nn.Embedding(5, 2))


class Seen(TorchDispatchMode):
    """The operations that are carried out."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def forms(tensor):
    return tensor.shape, tensor.dtype, tensor.device.type, tensor.requires_grad


def test_nothing_is_drawn_for_tensors_without_memory():
    with torch.device("meta"), Seen() as drawn:
        like = Own()
    with torch.device("meta"), Unfilled(), Seen() as seen:
        module = Own()
    assert module.found and str(module) == str(like)
    assert [(name, forms(each)) for name, each in module.named_parameters()] == [
        (name, forms(each)) for name, each in like.named_parameters()
    ]
    assert any("uniform" in name or "normal" in name for name in drawn.names)
    assert not any("uniform" in name or "normal" in name for name in seen.names)


def test_tensors_with_memory_have_their_values():
    torch.manual_seed(1)
    with Unfilled():
        module = Own()
    torch.manual_seed(1)
    like = Own()
    pairs = zip(module.parameters(), like.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)

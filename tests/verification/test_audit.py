"""What the plain loop observes of user code."""

from __future__ import annotations

import torch
from torch import nn

from naspipe.verification.audit import Audit


class Centring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.clamp_(-1, 1)
            self.centre = x.mean(0)
        return self.norm(x * self.weight - self.centre)


def test_a_forward_that_changes_its_layer_is_noted_once() -> None:
    audit, layer = Audit(), Centring()
    for _ in range(2):
        with audit.forward("2.1", layer):
            layer(torch.rand(4, 3))
    assert audit.take() == (
        ("2.1", "its forward changes parameter weight"),
        ("2.1", "its forward changes buffer centre"),
    )
    assert audit.take() == ()


def test_hooks_are_noted() -> None:
    audit, layer = Audit(), nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    audit.look_at_hooks("stem", layer)
    assert audit.take() == ()
    layer[1].register_forward_hook(lambda *_: None)
    layer[0].weight.register_hook(lambda grad: grad)
    audit.look_at_hooks("stem", layer)
    assert audit.take() == (
        ("stem", "module 1 has a hook"),
        ("stem", "parameter 0.weight has a hook"),
    )


def test_a_leaf_outside_the_layers_is_named_by_what_holds_it() -> None:
    audit, layer = Audit(), nn.Linear(3, 2)
    scales = [torch.ones(2, requires_grad=True)]

    def loss(output: torch.Tensor) -> torch.Tensor:
        return (output * scales[0]).sum()

    inside = {id(each) for each in layer.parameters()}
    audit.look_at_loss("loss", loss, layer(torch.rand(4, 3)).sum(), inside)
    assert audit.take() == ()
    audit.look_at_loss("loss", loss, loss(layer(torch.rand(4, 3))), inside)
    ((label, text),) = audit.take()
    assert label == "" and text.endswith("shape [2] held by scales[0]")

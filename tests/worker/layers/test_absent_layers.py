"""A layer whose memory on the device is gone: who looks at it, and what outlives its absence."""

from __future__ import annotations

import torch

from tests.oracle import bits
from tests.worker.layers.swapped_layers import (
    RECIPES,
    Mover,
    MovingDevice,
    contents,
    make_layer,
    memory_of,
    step,
)


def test_a_layer_that_is_away_comes_home_for_whoever_looks():
    """And is bound to the device again once it is back there."""
    layer, twin = make_layer("linear", RECIPES["Adam"]), make_layer("linear", RECIPES["Adam"])
    memory = memory_of(layer)
    mover = Mover(memory)
    mover.move()
    mover.move()
    assert bool(layer.module.weight.isnan().all()), "it has no memory"
    assert contents(layer) == contents(twin)
    assert layer.module.weight.data_ptr() == memory.host.data_ptr()
    mover.move()
    assert layer.module.weight.data_ptr() == memory.piece.data_ptr()
    for one in (layer, twin):
        step(one, 0)
    memory.adopt_state()
    assert contents(layer) == contents(twin)


def test_a_graph_outlives_the_layers_absence():
    """What autograd saved of weights, parts of them included, is there again with the layer."""
    layer = make_layer("linear", RECIPES["Adam"])
    mover = Mover(memory_of(layer), MovingDevice)
    x = torch.randn(3, 5, requires_grad=True)
    plain = torch.autograd.grad(use(layer.module, x).sum(), [x, *layer.module.parameters()])
    mover.move()
    output, before = use(layer.module, x), layer.module.weight.data_ptr()
    mover.move()
    assert layer.module.weight.data_ptr() == 0, "it has no memory"
    for _, _ in layer.tensors():  # for a checkpoint, say
        pass
    left = mover.device.allocate(mover.memory.state_bytes)  # so that it comes back elsewhere
    mover.move()
    assert layer.module.weight.data_ptr() not in (before, 0), "so this shows something"
    found = torch.autograd.grad(output.sum(), [x, *layer.module.parameters()])
    assert [bits(each) for each in found] == [bits(each) for each in plain]
    assert left.numel()


def use(module, x):
    """A weight whole, turned round and in parts."""
    first, second = module.weight.chunk(2)
    return (module(x) @ module.weight).exp() @ (first * second).t()


def test_only_what_lies_in_the_layers_memory_is_copied():
    layer = make_layer("linear", RECIPES["Adam"])
    memory = memory_of(layer)
    weight, other = layer.module.weight, torch.ones(3)
    assert memory.apart(weight) is weight, "host memory stays"
    mover = Mover(memory)
    mover.move()
    assert memory.apart(None) is None
    assert memory.apart(other) is other
    part = weight.detach()[1:].requires_grad_()
    apart = memory.apart(part)
    assert bits(apart) == bits(part) and apart.requires_grad and apart.is_leaf
    mover.move()
    assert bits(apart) == bits(dict(layer.tensors())["param/weight"][1:])

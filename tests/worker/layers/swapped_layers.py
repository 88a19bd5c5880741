"""Layers to swap, plain twins of them, a step that both take, and a way to move one."""

from __future__ import annotations

import time

import torch
from torch import nn

from naspipe.config.ids import Version
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Exact, Frozen
from naspipe.machine.emulated import EmulatedDevice
from naspipe.machine.host_arena import HostArena
from naspipe.worker.layers.layout import StateSizes
from naspipe.worker.layers.resident_layer import LayerMemory
from naspipe.worker.layers.stored_layer import StoredLayer
from tests.oracle import bits


class Sharing(nn.Module):
    """Buffers that are one tensor, or lie in one storage; one is not persistent, one expanded."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5).t())
        self.scale = nn.Parameter(torch.tensor(1.5))
        base = torch.arange(24.0)
        self.register_buffer("whole", base)
        self.register_buffer("part", base[3:9], persistent=False)
        self.register_buffer("same", base)
        self.register_buffer("wide", torch.randn(1).expand(5))
        self.register_buffer("later", None)

    def forward(self, x):
        self.part += 1
        return self.scale * (x @ self.weight) + self.wide.sum() + self.whole[3] + self.same[4]


class Replacing(nn.Module):
    """A running mean that each forward replaces."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 4)
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.linear(x - self.mean)


class PartlyUsed(nn.Module):
    """A parameter that gets no gradient, and one that wants none."""

    def __init__(self):
        super().__init__()
        self.used, self.unused, self.fixed = nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(5, 3)
        self.fixed.requires_grad_(False)

    def forward(self, x):
        return self.used(x) + self.fixed(x)


def batch_norm():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def channels_last():
    return nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)


MODULES = {
    "linear": (lambda: nn.Linear(5, 4), (7, 5)),
    "batch-norm": (batch_norm, (2, 3, 6, 6)),
    "channels-last": (channels_last, (2, 3, 6, 6)),
    "sharing": (Sharing, (7, 5)),
    "replacing": (Replacing, (7, 5)),
    "partly-used": (PartlyUsed, (7, 5)),
    "no-parameters": (nn.Tanh, (7, 5)),
    "lstm": (lambda: nn.LSTM(5, 4), (3, 5)),
}
"""A factory and the shape of its input, by name; ``frozen-`` before a name freezes it."""

RECIPES = {
    "SGD": Recipe(optimizer="SGD", optimizer_options={"momentum": 0.9}),
    "Adam": Recipe(optimizer="Adam"),
    "Adafactor": Recipe(optimizer="Adafactor"),
    "Adagrad": Recipe(optimizer="Adagrad"),
    "ASGD": Recipe(optimizer="ASGD"),
    "plain": Recipe(optimizer="SGD"),
}


def make_layer(name, recipe):
    torch.manual_seed(11)
    rule = Frozen() if name.startswith("frozen-") else Exact()
    return StoredLayer(name, rule, MODULES[name.removeprefix("frozen-")][0](), recipe)


def step(layer, number):
    """Forward, backward and WRITE of one subnet; returns the outputs."""
    torch.manual_seed(number)
    inputs = torch.randn(MODULES[layer.label.removeprefix("frozen-")][1])
    base = Version(number - 1)
    bound = layer.bind(base)
    outputs = bound.call(inputs)
    outputs = outputs[0] if isinstance(outputs, tuple) else outputs
    if outputs.requires_grad:
        outputs.square().mean().backward()
    layer.write(bound.take_gradients(), number, base, False, int(number), 0.05)
    return outputs.detach()


def contents(layer):
    """Bits and strides of everything in a layer; values that are no tensors as they are."""
    return {
        name: (bits(value), value.stride()) if isinstance(value, torch.Tensor) else value
        for name, value in layer.tensors()
    }


def memory_of(layer, recipe=RECIPES["Adam"]):
    return LayerMemory(layer, StateSizes(recipe), HostArena(pin=False, limit_bytes=None))


def stored(module, recipe=RECIPES["Adam"]):
    return StoredLayer("layer", Exact(), module, recipe)


class MovingDevice(EmulatedDevice):
    """Its memory goes and comes as a GPU's does: to other addresses, and none between.

    On a CPU torch refuses that of memory of which numpy was given a view, as for a checkpoint.
    """

    def allocate(self, nbytes):
        self.check_budget(nbytes)
        return self.count_in(torch.empty(nbytes, dtype=torch.uint8))

    def free(self, tensor):
        self.count_out(tensor)
        tensor.untyped_storage().resize_(0)

    def refill(self, tensor):
        self.check_budget(tensor.numel())
        tensor.untyped_storage().resize_(tensor.numel())
        self.count_in(tensor)


def finish(copy):
    """Wait until a copy is over."""
    deadline = time.monotonic() + 30
    while not copy.is_over():
        assert time.monotonic() < deadline
        time.sleep(copy.left_seconds)


class Mover:
    """Takes a layer to a device and back by hand."""

    def __init__(self, memory, kind=EmulatedDevice):
        self.memory, self.is_there = memory, False
        self.device = kind(1 << 20, 1e12, 0.0)

    def move(self):
        piece = self.memory.piece
        self.is_there = not self.is_there
        if self.is_there:
            if piece is None:
                piece = self.device.allocate(self.memory.state_bytes)
            else:
                self.device.refill(piece)
            finish(self.device.copy_in(self.memory.host, piece))
            self.memory.to_device(piece)
            return
        self.memory.adopt_state()
        self.memory.host.fill_(0xFF)
        finish(self.device.copy_out(piece, self.memory.host))
        self.memory.leave_device()
        self.device.free(piece)

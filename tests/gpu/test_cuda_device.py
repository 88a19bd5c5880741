"""Copies between pinned memory and a GPU keep bytes and the order of the compute."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.ids import FIRST_STREAM, LayerId, Version
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Exact
from naspipe.machine import out_of_memory as shortages
from naspipe.machine.emulated import open_device
from naspipe.machine.host_arena import HostArena
from naspipe.machine.ports import DeviceMemoryError
from naspipe.worker.layers.layout import StateSizes
from naspipe.worker.layers.resident_layer import LayerMemory
from naspipe.worker.layers.stored_layer import StoredLayer
from naspipe.worker.placement import Swapper
from tests.oracle import bits
from tests.worker.layers.swapped_layers import finish

pytestmark = pytest.mark.gpu
SIZE = 1 << 22


@pytest.fixture
def device():
    return open_device("cuda:0", 1 << 26)


@pytest.fixture
def arena():
    return HostArena(pin=True, limit_bytes=None, slab_bytes=1 << 23)


def busy(device):
    """Queue some hundred milliseconds of compute."""
    matrix = torch.randn(4096, 4096, device=device.torch_device) / 64
    for _ in range(40):
        matrix = matrix @ matrix
    return matrix


def test_bytes_survive_both_ways(device, arena):
    host, back = arena.allocate(SIZE), arena.allocate(SIZE)
    assert host.is_pinned()
    host.random_(0, 256)
    there = device.allocate(SIZE)
    assert there.data_ptr() % 512 == 0
    finish(device.copy_in(host, there))
    finish(device.copy_out(there, back))
    assert torch.equal(host, back)


def test_a_save_holds_what_was_queued_before_it(device, arena):
    back, there = arena.allocate(SIZE), device.allocate(SIZE)
    there.zero_()
    for byte in (7, 9):
        busy(device)
        there.fill_(byte)
        copy = device.copy_out(there, back)
        assert not copy.is_over()
        finish(copy)
        assert bool((back == byte).all())


def test_a_load_leaves_memory_alone_that_queued_kernels_use(device, arena):
    host, old = arena.allocate(SIZE).fill_(1), device.allocate(SIZE)
    old.fill_(5)
    busy(device)
    result = old.clone()  # queued behind the busy kernels
    device.free(old)
    del old
    fresh = device.allocate(SIZE)
    finish(device.copy_in(host, fresh))
    device.wait(device.mark())
    assert bool((result == 5).all())
    assert bool((fresh == 1).all())


def test_the_budget(device):
    memory = device.allocate(1 << 26)
    with pytest.raises(DeviceMemoryError):
        device.allocate(1)
    device.free(memory)
    with pytest.raises(InvariantError):
        device.free(memory)
    with pytest.raises(ConfigError, match="expected a budget of at most its"):
        open_device("cuda:0", 1 << 50)


@pytest.mark.parametrize("optimizer", ["Adam", "SGD", "Adafactor"])
def test_a_swapped_layer_has_the_bits_of_one_that_stays(device, arena, optimizer):
    options = {"momentum": 0.9} if optimizer == "SGD" else {}
    recipe = Recipe(optimizer=optimizer, optimizer_options=options)
    layers = []
    for _ in range(2):
        torch.manual_seed(1)
        module = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8))
        layers.append(StoredLayer("layer", Exact(), module, recipe))
    layers[0].module.to(device.torch_device)
    memory, layer = LayerMemory(layers[1], StateSizes(recipe), arena), LayerId(FIRST_STREAM, 0, 0)
    with (
        torch.backends.cudnn.flags(deterministic=True, benchmark=False),
        Swapper(device) as swapper,
    ):
        for step in range(4):
            swapper.load(layer, memory)
            wait(swapper)
            inputs = torch.randn(2, 4, 9, 9).to(device.torch_device)
            for stored in layers:
                bound = stored.bind(Version(step - 1))
                bound.call(inputs).square().mean().backward()
                stored.write(bound.take_gradients(), step, Version(step - 1), False, step, 0.05)
            memory.adopt_state()
            swapper.save(layer, memory)
            wait(swapper)
            swapper.evict(layer, memory)
            assert device.used_bytes == 0
    one, other = (dict(stored.tensors()) for stored in layers)
    assert one.keys() == other.keys()
    assert all(bits(one[name].cpu()) == bits(other[name].cpu()) for name in one)


def test_a_graph_outlives_the_layers_absence(device, arena):
    """The layer comes back to other memory, and what the graph holds of its weight with it."""
    recipe, layer = Recipe(), LayerId(FIRST_STREAM, 0, 0)
    torch.manual_seed(1)
    stored = StoredLayer("layer", Exact(), nn.Linear(64, 64), recipe)
    module, memory = stored.module, LayerMemory(stored, StateSizes(recipe), arena)
    inputs = torch.randn(8, 64).to(device.torch_device)
    with Swapper(device) as swapper:
        swapper.load(layer, memory)
        wait(swapper)
        plain = torch.autograd.grad(use(module, inputs), [*module.parameters()])
        output, before = use(module, inputs), module.weight.data_ptr()
        swapper.evict(layer, memory)
        assert device.used_bytes == 0 and not module.weight.data_ptr()
        taken = device.allocate(memory.state_bytes)
        swapper.load(layer, memory)
        wait(swapper)
        assert module.weight.data_ptr() != before, "so this shows something"
        found = torch.autograd.grad(output, [*module.parameters()])
        device.free(taken)
    assert [bits(each.cpu()) for each in found] == [bits(each.cpu()) for each in plain]


def use(module, inputs):
    first, second = module.weight.chunk(2)
    return ((module(inputs) @ module.weight).tanh() @ (first * second).t()).sum()


def wait(swapper):
    deadline = time.monotonic() + 30
    while not swapper.take_finished():
        assert time.monotonic() < deadline
        time.sleep(swapper.left_seconds)


@pytest.fixture
def no_memory():
    share = torch.cuda.get_per_process_memory_fraction()
    torch.cuda.set_per_process_memory_fraction(0.0)
    yield
    torch.cuda.set_per_process_memory_fraction(share)


def test_the_allocator_tells_of_what_it_refuses(device, no_memory):
    shortages.note()
    before = shortages.refused_allocations()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 31, dtype=torch.uint8, device=device.torch_device)
    assert shortages.refused_allocations() == before + 1
    shortages.note()
    assert shortages._Seen.tells, "torch told of another number than it counts"

"""A layer in one piece of memory keeps its bits wherever that is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.ids import FIRST_STREAM, LayerId, Version
from naspipe.config.recipe import Recipe
from naspipe.machine.emulated import EmulatedDevice
from naspipe.machine.host_arena import HostArena
from naspipe.wire.messages import VersionMessage, read_message, stage_frames
from naspipe.worker.layers.layout import StateSizes
from naspipe.worker.layers.resident_layer import LayerMemory
from tests.oracle import bits
from tests.worker.layers.swapped_layers import (
    MODULES,
    RECIPES,
    Mover,
    contents,
    finish,
    make_layer,
    memory_of,
    step,
    stored,
)

NAMES = [*MODULES, "frozen-batch-norm", "frozen-linear"]


@settings(max_examples=30)
@given(st.sampled_from(NAMES), st.sampled_from(list(RECIPES)), st.lists(st.booleans(), max_size=8))
def test_moves_between_steps_change_no_bit(name, optimizer, moves):
    """True moves the layer, False trains it: like a twin that is never moved."""
    recipe = RECIPES[optimizer]
    layer, twin = make_layer(name, recipe), make_layer(name, recipe)
    memory = memory_of(layer, recipe)
    mover = Mover(memory)
    assert contents(layer) == contents(twin)
    number = 0
    for moves_now in moves:
        if moves_now:
            mover.move()
        else:
            assert bits(step(layer, number)) == bits(step(twin, number))
            memory.adopt_state()
            number += 1
        assert contents(layer) == contents(twin)


@pytest.mark.parametrize("optimizer", list(RECIPES))
@pytest.mark.parametrize("name", [name for name in MODULES if name != "no-parameters"])
def test_a_layer_that_was_away_is_what_came_back(name, optimizer):
    """Its memory is another layer's meanwhile; what the other stage made of it comes back."""
    recipe = RECIPES[optimizer]
    layer, elsewhere = make_layer(name, recipe), make_layer(name, recipe)
    arena = HostArena(pin=False, limit_bytes=None)
    memory = LayerMemory(layer, StateSizes(recipe), arena)
    for number in range(2):
        step(layer, number)
        step(elsewhere, number)
        memory.adopt_state()
    layer.hand_over()
    arena.give_back(memory.leave(), lambda: True)
    other = arena.allocate(memory.state_bytes).fill_(0xFF)
    step(elsewhere, 2)
    memory.come_back(arena)
    message = stage_frames(
        VersionMessage(LayerId(FIRST_STREAM, 0, 0), Version(2), elsewhere.hand_over())
    )
    header, *frames = map(bytes, message)
    layer.take_over(Version(2), read_message(header, frames).state)
    memory.adopt_state()
    assert contents(layer) == contents(elsewhere)
    assert bits(step(layer, 3)) == bits(step(elsewhere, 3))
    memory.adopt_state()
    assert contents(layer) == contents(elsewhere)
    assert bool((other == 0xFF).all())


@pytest.mark.parametrize("optimizer", list(RECIPES))
@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_lies_in_the_blob(name, optimizer):
    layer = make_layer(name, RECIPES[optimizer])
    memory = memory_of(layer, RECIPES[optimizer])
    mover = Mover(memory)
    step(layer, 0)
    memory.adopt_state()
    for is_there in (False, True):
        if is_there:
            mover.move()
        start = (memory.piece if mover.is_there else memory.host).data_ptr()
        for tensor_name, tensor in layer.tensors():
            if not isinstance(tensor, torch.Tensor):
                continue
            if tensor_name.startswith("optimizer/") and tensor.dim() == 0:
                assert not start <= tensor.data_ptr() < start + memory.state_bytes
                continue
            assert start <= tensor.data_ptr() < start + memory.state_bytes, tensor_name
            if tensor_name != "buffer/part":
                assert tensor.data_ptr() % 512 == 0, tensor_name
    assert memory.state_bytes % 512 == 0


def test_use_before_the_load_and_after_the_eviction_shows():
    layer = make_layer("linear", RECIPES["Adam"])
    memory, device = memory_of(layer), EmulatedDevice(1 << 20)
    blob = device.allocate(memory.state_bytes)
    memory.to_device(blob)  # nothing was copied
    assert bool(layer.module(torch.ones(1, 5)).isnan().all())
    finish(device.copy_in(memory.host, blob))
    assert not bool(layer.module(torch.ones(1, 5)).isnan().any())
    device.free(blob)  # still bound
    assert bool(layer.module(torch.ones(1, 5)).isnan().all())


def test_absent_state_stays_absent():
    layer = make_layer("partly-used", RECIPES["Adam"])
    memory = memory_of(layer)
    mover = Mover(memory)
    step(layer, 0)
    memory.adopt_state()
    mover.move()
    stepped = {name.split("/")[1] for name, _ in layer.tensors() if name.startswith("optim")}
    assert stepped == {"used.weight", "used.bias"}
    assert not layer.module.fixed.weight.requires_grad
    wanting = sum(parameter.requires_grad for parameter in layer.module.parameters())
    assert memory.state_bytes == 512 * (6 + 2 * wanting)


def test_a_layer_that_was_trained_before_keeps_its_state():
    layer, twin = (make_layer("batch-norm", RECIPES["SGD"]) for _ in range(2))
    for one in (layer, twin):
        step(one, 0)
    mover = Mover(memory_of(layer, RECIPES["SGD"]))
    mover.move()
    for one in (layer, twin):
        step(one, 1)
    assert contents(layer) == contents(twin)


def test_states_that_are_no_tensors_are_left_alone():
    layer = make_layer("linear", RECIPES["Adam"])
    memory = memory_of(layer)
    step(layer, 0)
    state = layer.optimizer.state[layer.module.bias]
    state["note"], state["nothing"], state["exp_avg"] = 3.5, None, None
    memory.adopt_state()
    Mover(memory).move()
    assert (state["note"], state["nothing"], state["exp_avg"]) == (3.5, None, None)


def test_shared_buffers_go_on_sharing():
    module = make_layer("sharing", RECIPES["Adam"]).module
    layer = stored(module)
    Mover(memory_of(layer)).move()
    module.whole[3] = 77.0
    assert float(module.part[0]) == float(module.same[3]) == 77.0
    assert module.whole is module.same
    assert module.wide.stride() == (0,)
    assert module.later is None


def test_buffers_have_version_counters_of_their_own():
    """A forward that writes one buffer must not invalidate what a backward saved of another."""
    module = nn.Module()
    module.register_buffer("factor", torch.ones(3))
    module.register_buffer("count", torch.zeros(3))
    Mover(memory_of(stored(module))).move()
    x = torch.ones(3, requires_grad=True)
    y = (x * module.factor).sum()
    module.count += 1
    y.backward()
    assert x.grad.tolist() == [1, 1, 1]


def test_a_replaced_buffer_must_be_moved_in_before_a_move():
    layer = make_layer("replacing", RECIPES["Adam"])
    memory = memory_of(layer)
    step(layer, 0)
    piece = torch.zeros(memory.state_bytes, dtype=torch.uint8)
    with pytest.raises(InvariantError, match=r"while buffer/mean, optimizer/.* lay outside"):
        memory.to_device(piece)
    memory.adopt_state()
    memory.to_device(piece)
    layer.module.mean = layer.module.mean + 1
    memory.leave_device()
    piece.untyped_storage().resize_(0)
    with pytest.raises(InvariantError, match="while buffer/mean lay outside"):
        layer.hand_over()


def test_memory_of_another_size_is_refused():
    memory = memory_of(make_layer("linear", RECIPES["Adam"]))
    with pytest.raises(InvariantError, match="expected memory of 3072 bytes, found 512"):
        memory.to_device(torch.zeros(512, dtype=torch.uint8))


def grow(module):
    module.whole = torch.zeros(25)


def add(module):
    module.later = torch.zeros(3)


def unshare(module):
    module.part = module.part + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (add, "layer layer: buffer/later was not there when the layer was made; a layer that is"),
        (unshare, "layer layer: buffer/part was replaced, and shares its memory with others; a la"),
        (grow, "layer layer: buffer/whole was replaced, and shares its memory with others; a lay"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(change, message):
    module = make_layer("sharing", RECIPES["Adam"]).module
    memory = memory_of(stored(module))
    change(module)
    with pytest.raises(ConfigError, match=message) as raised:
        memory.adopt_state()
    assert "\n" not in str(raised.value)


def test_a_buffer_that_grew_is_refused():
    layer = make_layer("replacing", RECIPES["Adam"])
    memory = memory_of(layer)
    layer.module.mean = torch.zeros(6)
    with pytest.raises(ConfigError, match="layer replacing: buffer/mean grew from 20 to 24 bytes"):
        memory.adopt_state()


def test_a_state_that_no_first_step_showed_is_a_bug():
    layer = make_layer("linear", RECIPES["Adam"])
    memory = memory_of(layer)
    layer.optimizer.state[layer.module.bias]["surprise"] = torch.zeros(4)
    with pytest.raises(InvariantError, match="layer linear: optimizer/bias/surprise was not there"):
        memory.adopt_state()


def test_tensors_that_are_not_plain_are_refused():
    module = nn.Module()
    module.register_buffer("sparse", torch.eye(3).to_sparse())
    with pytest.raises(ConfigError, match="layer layer: expected buffer/sparse to be an ordinary"):
        memory_of(stored(module, Recipe()), Recipe())

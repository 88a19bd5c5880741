"""Where tensors lie in a layer's memory: sizes, strides, alignment, what they share."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from naspipe.worker.layers.layout import StateSizes
from tests.oracle import bits
from tests.worker.layers.swapped_layers import (
    RECIPES,
    Mover,
    contents,
    make_layer,
    memory_of,
    stored,
)


def test_a_layout_by_hand():
    """Weight 80 bytes, bias 16, and two states each: six slots of 512 bytes."""
    layer = make_layer("linear", RECIPES["Adam"])
    identities = [id(parameter) for parameter in layer.module.parameters()]
    weight = bits(layer.module.weight)
    memory = memory_of(layer)
    assert memory.state_bytes == 6 * 512
    assert layer.module.weight.data_ptr() == memory.host.data_ptr()
    assert layer.module.bias.data_ptr() == memory.host.data_ptr() + 512
    assert [id(parameter) for parameter in layer.module.parameters()] == identities
    assert all(parameter.requires_grad for parameter in layer.module.parameters())
    assert bits(memory.host[:80].view(torch.float32).reshape(4, 5)) == weight
    assert dict(layer.optimizer.state) == {}


@pytest.mark.parametrize(
    ("optimizer", "sizes"),
    [
        ("SGD", {"momentum_buffer": 48}),
        ("plain", {}),
        ("Adam", {"exp_avg": 48, "exp_avg_sq": 48}),
        ("Adafactor", {"row_var": 16, "col_var": 12}),
        ("ASGD", {"ax": 48}),
    ],
)
def test_sizes_of_states(optimizer, sizes):
    assert StateSizes(RECIPES[optimizer]).of(torch.zeros(4, 3)) == sizes


def test_sizes_are_learnt_once_and_draw_nothing(monkeypatch):
    sizes = StateSizes(RECIPES["Adam"])
    torch.manual_seed(0)
    before = torch.get_rng_state()
    known = sizes.of(torch.ones(4, 3))
    assert torch.equal(torch.get_rng_state(), before)
    assert sizes.of(torch.zeros(4, 3)) is known
    assert sizes.of(torch.zeros(3, 4).t()) is not known
    assert sizes.of(torch.zeros(4, 3, dtype=torch.float64)) == {"exp_avg": 96, "exp_avg_sq": 96}


def buffers_of(bases, views):
    """A module whose buffers are strided views: of which base, from where, how many, how far."""
    module = nn.Module()
    storages = [torch.arange(40.0) + 100 * base for base in range(bases)]
    for number, (base, first, count, stride) in enumerate(views):
        view = storages[base % bases].as_strided((count,), (stride,), first)
        module.register_buffer(f"b{number}", view)
    return module


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 20), st.integers(2, 5), st.integers(1, 4)
        ),
        max_size=6,
    ),
)  # fmt: skip
def test_views_keep_strides_alignment_and_what_they_share(bases, views):
    module, twin = buffers_of(bases, views), buffers_of(bases, views)
    offsets = [4 * first for _, first, _, _ in views]
    Mover(memory_of(stored(module))).move()
    for number, offset in enumerate(offsets):
        for one in (module, twin):
            one.get_buffer(f"b{number}").mul_(number + 2)
        moved = module.get_buffer(f"b{number}")
        assert moved.data_ptr() % 512 == offset
    assert contents(stored(module)) == contents(stored(twin))


def test_empty_tensors_take_no_room():
    module = nn.Module()
    module.register_buffer("empty", torch.zeros(0, 4))
    module.weight = nn.Parameter(torch.zeros(3, 0))
    layer = stored(module)
    before = contents(layer)
    mover = Mover(memory_of(layer))
    assert mover.memory.state_bytes == 0
    mover.move()
    mover.move()
    assert contents(layer) == before

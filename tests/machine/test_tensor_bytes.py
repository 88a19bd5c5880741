"""Bytes of tensors of every shape, strides and type, wherever bits are compared or kept."""

from __future__ import annotations

import struct
from itertools import product
from operator import mul

import pytest
import torch
from torch import nn

from naspipe.config.recipe import Recipe
from naspipe.config.rules import Exact
from naspipe.machine.staging import same_bits, tensor_bytes
from naspipe.store.shards import RawTensor
from naspipe.worker.checkpoints.restored import dtype_name, from_raw, in_a_row
from naspipe.worker.layers.stored_layer import StoredLayer
from tests.oracle import bits

ODD = {
    "one element, stride 3": torch.tensor([1.5, 2, 3])[::3],
    "one element in the middle, stride 5": torch.arange(10.0)[2:3].as_strided((1,), (5,), 2),
    "one of two dimensions, stride 7": torch.arange(14.0).as_strided((1, 1), (7, 7), 3),
    "transposed": torch.arange(6.0).reshape(2, 3).T,
    "every other one": torch.arange(8.0)[1::2],
    "repeated": torch.ones(1).expand(4),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "no dimension": torch.tensor(-0.0),
    "no element": torch.empty(0, 3),
    "bf16": torch.tensor([1.0, float("nan")], dtype=torch.bfloat16),
    "whole numbers": torch.tensor([[1, -1]], dtype=torch.int64)[:, ::2],
    "truths": torch.tensor([True, False, True])[::2],
    "a parameter": nn.Parameter(torch.arange(4.0)[::4]),
}


@pytest.mark.parametrize("name", ODD)
def test_bytes_are_those_of_the_elements_in_order(name):
    tensor = ODD[name]
    code = {torch.float32: "f", torch.int64: "q", torch.bool: "?"}.get(tensor.dtype)
    expected = (
        struct.pack(f"<{tensor.numel()}{code}", *tensor.flatten().tolist())
        if code
        else b"\x80\x3f\xc0\x7f"
    )
    assert tensor_bytes(tensor).numpy().tobytes() == expected
    assert bits(tensor) == (str(tensor.dtype), tuple(tensor.shape), expected)


@pytest.mark.parametrize("name", [name for name in ODD if name != "no element"])
def test_checkpoints_and_comparisons_take_them(name):
    tensor = ODD[name]
    assert in_a_row([tensor.detach(), tensor.detach()]) == 2 * bits(tensor)[2]
    raw = RawTensor(dtype_name(tensor.dtype), tuple(tensor.shape), bits(tensor)[2])
    assert bits(from_raw(raw)) == bits(tensor)
    assert same_bits(tensor, tensor.detach().clone())
    other = tensor.detach().clone(memory_format=torch.contiguous_format)
    tensor_bytes(other)[0] ^= 1
    assert not same_bits(tensor, other)


@pytest.mark.parametrize("offset", [0, 3, 8])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 24, 29])
def test_every_byte_is_compared(size, offset):
    tensor = torch.arange(offset + size, dtype=torch.uint8)[offset:]
    assert same_bits(tensor, tensor.clone())
    for place in range(size):
        other = tensor.clone()
        other[place] ^= 0x80
        assert not same_bits(tensor, other) and not same_bits(other, tensor)


LAZY = {
    "conjugated": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "negated": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "negated and dense": torch.tensor([1 + 2j]).conj().imag,
}


@pytest.mark.parametrize("name", LAZY)
def test_what_is_in_memory_is_not_what_is_read(name):
    tensor = LAZY[name]
    assert tensor.is_conj() or tensor.is_neg()
    read = tensor.resolve_conj().resolve_neg()
    assert same_bits(tensor, read) and same_bits(read, tensor)
    assert tensor_bytes(tensor).tolist() == tensor_bytes(read).tolist()
    other = tensor.detach().clone()
    other[-1] += 1
    assert not same_bits(tensor, other) and not same_bits(other, tensor)


@pytest.mark.parametrize("strides", [(12, 4, 1), (1, 2, 6), (4, 8, 1), (24, 1, 3), (48, 8, 2)])
def test_every_element_counts_in_whatever_order_memory_has_them(strides):
    shape = (2, 3, 4)
    places = list(product(*map(range, shape)))
    of_elements = [sum(map(mul, place, strides)) for place in places]
    one, other = torch.full((128,), 0.5), torch.zeros(128)  # what lies between does not count
    one[of_elements] = other[of_elements] = torch.arange(24.0)
    one, other = one.as_strided(shape, strides), other.as_strided(shape, strides)
    assert same_bits(one, other) and same_bits(one, one.contiguous())
    for place in places:
        was = other[place].item()
        other[place] = -was - 1
        assert not same_bits(one, other) and not same_bits(other, one)
        other[place] = was


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_tensor_whose_memory_was_freed_is_not_the_same(layout):
    tensor = torch.ones(2, 3, 4, 5).to(memory_format=layout)
    copy = tensor.clone()
    tensor.untyped_storage().resize_(tensor.nbytes - 1)
    assert not same_bits(tensor, copy) and not same_bits(copy, tensor)
    tensor.untyped_storage().resize_(0)
    assert not same_bits(tensor, copy) and not same_bits(copy, tensor)


def test_a_contiguous_tensor_is_not_copied():
    tensor = torch.arange(6.0)[2:]
    assert tensor_bytes(tensor).data_ptr() == tensor.data_ptr()


def test_a_digest_sees_every_bit_of_a_strided_element():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0])[::3])

    stored = StoredLayer("0.0", Exact(), Odd(), Recipe())
    before = stored.digest()
    stored.module.scale[0] = -1.0
    assert stored.digest() != before

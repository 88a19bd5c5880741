"""Strides, alignment and bytes survive the wire; what does not fit is refused."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from naspipe.core.errors import TransportError
from naspipe.runtime.tensor_codec import ALIGNMENT, decode, encode
from naspipe.runtime.transport import read_message
from tests.oracle import bits


def views():
    base = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    yield base
    yield base.contiguous(memory_format=torch.channels_last)
    yield base[:, 1:, ::2]
    yield base.transpose(1, 3)
    yield base[0, 0, 0].expand(7, 5)
    yield base.flatten()[3:50]
    yield torch.zeros(0, 4)
    yield torch.tensor(float("nan"))
    yield torch.tensor([-0.0, 0.0])
    yield torch.arange(6).reshape(2, 3) > 2
    yield base.to(torch.bfloat16)[..., 1:]
    yield torch.tensor([1 + 2j])


@pytest.mark.parametrize("tensor", list(views()), ids=lambda t: f"{t.dtype}{t.stride()}")
def test_round_trip(tensor):
    entry, frame = encode(tensor)
    found = decode(entry, bytes(frame))
    assert found.stride() == tensor.stride()
    assert found.data_ptr() % ALIGNMENT == tensor.data_ptr() % ALIGNMENT or tensor.numel() == 0
    assert bits(found) == bits(tensor)


def test_absent_and_wanted_gradients():
    assert decode(*encode(None)) is None
    assert decode(*encode(torch.zeros(2, requires_grad=True))).requires_grad
    assert not decode(*encode(torch.zeros(2))).requires_grad


@pytest.mark.parametrize(
    "entry",
    [
        ["float32", [2], [1], 0, False],
        ["float32", [2**40], [2**40], 0, False],
        ["float32", [-1], [1], 0, False],
        ["float32", [4], [1], 64, False],
        ["float32", [4], [1], 3, False],
        ["pickle", [4], [1], 0, False],
        [],
        7,
    ],
)
def test_headers_that_do_not_fit_are_refused(entry):
    with pytest.raises(TransportError):
        decode(entry, b"\0" * 16)


@given(st.binary(max_size=64), st.lists(st.binary(max_size=16), max_size=3))
def test_no_bytes_crash_the_reader(header, frames):
    with contextlib.suppress(TransportError):
        read_message(header, frames)

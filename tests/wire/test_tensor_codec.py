"""Strides, alignment and bytes survive the wire; what does not fit is refused."""

from __future__ import annotations

import contextlib

import msgpack
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import TransportError
from naspipe.wire.tensor_codec import (
    ALIGNMENT,
    HOST_ALIGNMENT,
    blank,
    copy_to,
    decode,
    decode_into,
    encode,
    raw_bytes,
)
from naspipe.wire.transport import read_message
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
    yield torch.tensor([[1 + 2j, 3 - 4j], [0j, -5j]]).T.conj()
    yield torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    yield torch._neg_view(torch.tensor([1 + 2j, 3 - 4j]).conj())


@pytest.mark.parametrize("tensor", list(views()), ids=lambda t: f"{t.dtype}{t.stride()}")
def test_round_trip(tensor):
    entry, frame = encode(tensor)
    found = decode(entry, bytes(frame))
    assert found.stride() == tensor.stride()
    alignment = HOST_ALIGNMENT
    assert found.data_ptr() % alignment == tensor.data_ptr() % alignment or tensor.numel() == 0
    assert bits(found) == bits(tensor)
    assert (found.is_conj(), found.is_neg()) == (tensor.is_conj(), tensor.is_neg())
    target = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    if (tensor.is_conj(), tensor.is_neg()) == (False, False):
        decode_into(entry_of(entry), bytes(frame), target)
        assert bits(target) == bits(tensor)
    else:
        with pytest.raises(TransportError):
            decode_into(entry_of(entry), bytes(frame), target)


def entry_of(described):
    """As it arrives."""
    return msgpack.unpackb(msgpack.packb(described))


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
        ["float32", [4], [1], 512, False],
        ["float32", [4], [1], 3, False],
        ["pickle", [4], [1], 0, False],
        ["float32", [4], [1], 0, False, "conjugated"],
        ["float32", [4], [1], 0, False, "turned"],
        ["float32", [4], [1], 0, False, ["negated"]],
        [],
        7,
    ],
)
def test_headers_that_do_not_fit_are_refused(entry):
    """Seven in an entry's place was found by fuzzing."""
    with pytest.raises(TransportError):
        decode(entry, b"\0" * 16)
    with pytest.raises(TransportError):
        decode_into(entry, b"\0" * 16, torch.zeros(4, 4).diagonal())


@pytest.mark.parametrize("tensor", list(views()), ids=lambda t: f"{t.dtype}{t.stride()}")
def test_a_copy_on_a_device_keeps_strides_and_alignment(tensor):
    tensor = tensor.detach().requires_grad_(tensor.is_floating_point())
    found = copy_to(tensor, torch.device("cpu"))
    assert found.stride() == tensor.stride() and found.requires_grad == tensor.requires_grad
    assert found.data_ptr() % ALIGNMENT == tensor.data_ptr() % ALIGNMENT or tensor.numel() == 0
    assert bits(found) == bits(tensor)
    assert (found.is_conj(), found.is_neg()) == (tensor.is_conj(), tensor.is_neg())
    assert found.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


class OnDevice:
    """An address as a GPU's tensor may have it: an offset view of memory aligned to 512 bytes."""

    def __init__(self, offset: int) -> None:
        memory = torch.zeros(4096, dtype=torch.uint8)
        start = -memory.data_ptr() % ALIGNMENT + offset
        self.tensor = memory[start : start + 64].view(torch.float32)
        self.tensor.copy_(torch.arange(16))


@given(st.integers(0, 127).map(lambda number: 4 * number))
def test_an_offset_view_of_a_device_is_as_far_from_512_bytes_on_the_next_one(offset):
    """Its libraries choose kernels by that; what lies between is host memory."""
    sent = OnDevice(offset).tensor
    entry, frame = encode(sent)
    entry[3] = offset  # a tensor in device memory is described so
    arrived = decode(entry, frame)
    assert arrived.data_ptr() % ALIGNMENT == offset
    there = copy_to(arrived, torch.device("cpu"))
    assert there.data_ptr() % ALIGNMENT == offset
    assert bits(there) == bits(sent)


def test_bytes_are_written_into_a_tensor_of_the_same_layout_only():
    source = torch.arange(12.0).reshape(3, 4).t()
    entry, frame = encode(source)
    entry = [entry[0], list(entry[1]), list(entry[2]), *entry[3:]]
    target = torch.zeros(3, 4).t()
    decode_into(entry, bytes(frame), target)
    assert bits(target) == bits(source)
    for other in (torch.zeros(4, 3), torch.zeros(3, 4).t().double()):
        with pytest.raises(TransportError, match="does not fit"):
            decode_into(entry, bytes(frame), other)
    with pytest.raises(TransportError, match="does not fit"):
        decode_into(entry, bytes(frame)[:-1], target)


def test_no_memory_is_taken_for_what_does_not_fit():
    def allocate(nbytes):
        raise AssertionError(f"{nbytes} bytes were taken")

    for entry, nbytes in ((["float32", [2**40], [1], 0, False], None),
                          (["float32", [4], [1], 0, False], 15)):  # fmt: skip
        with pytest.raises(TransportError, match="does not fit"):
            blank(entry, allocate, nbytes)


def test_raw_bytes_share_the_tensors_memory():
    tensor = torch.zeros(4, 6)[1:, 2:]
    raw_bytes(tensor).fill_(255)
    assert bool(tensor.isnan().all())


@given(st.binary(max_size=64), st.lists(st.binary(max_size=16), max_size=3))
def test_no_bytes_crash_the_reader(header, frames):
    with contextlib.suppress(TransportError):
        read_message(header, frames)

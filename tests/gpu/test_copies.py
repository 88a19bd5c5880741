"""What leaves and enters a GPU: bytes, order against the compute, and how fast."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from naspipe.config.ids import Version
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Exact
from naspipe.machine.cuda import open_clock
from naspipe.machine.determinism import seed_draws
from naspipe.machine.emulated import open_device
from naspipe.machine.gpus import find_gpus
from naspipe.machine.host_arena import HostArena
from naspipe.machine.staging import Staging
from naspipe.wire.messages import VersionMessage, read_message, stage_frames
from naspipe.wire.tensor_codec import ALIGNMENT, decode, decode_into, encode
from naspipe.worker.layers.stored_layer import StoredLayer
from naspipe.worker.placement import Placement
from tests.oracle import bits
from tests.wire.test_tensor_codec import views
from tests.worker.layers.swapped_layers import finish

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda:0")
SIZE = 1 << 28


@pytest.fixture
def device():
    return open_device("cuda:0", 1 << 30)


def busy():
    """Queue some hundred milliseconds of compute."""
    matrix = torch.randn(4096, 4096, device=GPU) / 64
    for _ in range(60):
        matrix = matrix @ matrix
    return matrix


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_copy_runs_beside_compute_that_was_queued_after_it(device, way):
    host, there = HostArena(pin=True, limit_bytes=None).allocate(1 << 24), device.allocate(1 << 24)
    copy = device.copy_in(host, there) if way == "in" else device.copy_out(there, host)
    busy()
    end = device.mark()
    finish(copy)
    assert not end.query() and copy.nanoseconds > 0
    device.wait(device.mark())


def test_copies_reach_the_bandwidth_of_pinned_memory(device):
    host, there = HostArena(pin=True, limit_bytes=None).allocate(SIZE), device.allocate(SIZE)
    host.fill_(1)
    plain = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        plain.append(time.perf_counter() - start)
    ours = []
    for _ in range(5):
        start = time.perf_counter()
        finish(device.copy_in(host, there))
        ours.append(time.perf_counter() - start)
    assert min(ours) < min(plain) / 0.8


@pytest.mark.parametrize("tensor", list(views()), ids=lambda t: f"{t.dtype}{t.stride()}")
def test_a_tensor_crosses_from_gpu_to_gpu_unchanged(tensor):
    staging, placement = Staging(GPU), Placement(GPU)
    there = placement.receive(tensor)
    entry, frame = encode(there, staging)
    staging.wait()
    arrived = decode(entry, bytes(frame), staging)
    assert arrived.is_pinned() and staging.is_pinned
    found = placement.receive(arrived)
    assert found.device == GPU and found.stride() == tensor.stride()
    same = found.data_ptr() % ALIGNMENT == tensor.data_ptr() % ALIGNMENT
    assert same or tensor.numel() == 0
    assert bits(found) == bits(tensor)
    target = torch.empty_like(found)
    if target.stride() == found.stride():
        decode_into([entry[0], list(entry[1]), list(entry[2])], bytes(frame), target)
        assert bits(target) == bits(tensor)


def test_what_is_sent_is_what_was_computed_before():
    staging = Staging(GPU)
    tensor = torch.zeros(1 << 20, device=GPU)
    busy()
    tensor.fill_(3)
    _, frame = encode(tensor, staging)
    staging.wait()
    tensor.fill_(4)
    assert set(bytes(frame)) == set(bytes(encode(torch.full((1,), 3.0))[1]))


def test_a_pinned_piece_that_is_dropped_is_not_given_out_before_its_copy_is_over():
    placement, staging = Placement(GPU), Staging(GPU)
    arrived = []
    busy()
    for number in range(20):
        frame = bytes(encode(torch.full((1 << 20,), float(number)))[1])
        entry = ["float32", [1 << 20], [1], 0, False]
        arrived.append(placement.receive(decode(entry, frame, staging)))
    torch.cuda.synchronize()
    assert [float(tensor[-1]) for tensor in arrived] == list(range(20))


def test_optimizer_state_that_arrives_goes_beside_its_parameter():
    recipe = Recipe(optimizer="Adam")
    layers = []
    for _ in range(2):
        torch.manual_seed(1)
        layers.append(StoredLayer("layer", Exact(), nn.Linear(8, 8).to(GPU), recipe))
    here, there = layers
    inputs = torch.randn(4, 8, device=GPU)

    def step(layer, number):
        bound = layer.bind(Version(number - 1))
        bound.call(inputs).square().mean().backward()
        layer.write(bound.take_gradients(), number, Version(number - 1), False, number, 0.05)

    step(here, 0)
    header, *frames = stage_frames(
        VersionMessage((0, 0, 0), Version(0), list(here.tensors())), Staging(GPU)
    )
    message = read_message(header, [bytes(frame) for frame in frames])
    there.take_over(Version(0), message.state)
    for layer in layers:
        step(layer, 1)
    one, other = (dict(layer.tensors()) for layer in layers)
    assert one.keys() == other.keys()
    assert all(one[name].device == other[name].device for name in one)
    assert all(bits(one[name]) == bits(other[name]) for name in one)


def test_seeds_reach_the_gpu_as_the_plain_loop_sets_them():
    def draw():
        return torch.nn.functional.dropout(torch.ones(1000, device=GPU)), torch.rand(9)

    torch.manual_seed(77)
    expected = draw()
    draw()
    seed_draws(77)
    assert all(bits(a) == bits(b) for a, b in zip(draw(), expected, strict=True))


def test_the_clock_tells_the_time_of_the_device():
    clock = open_clock(GPU)
    busy()
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    marks = [clock.mark()]
    busy()
    marks.append(clock.mark())
    (told,) = clock.between_ns(marks)
    passed = time.perf_counter_ns() - start
    assert 0.5 * passed < told <= 1.05 * passed


def test_the_gpus_are_torchs():
    gpus = find_gpus()
    assert gpus.names[0] == torch.cuda.get_device_name(0)
    assert gpus.memory_bytes[0] == torch.cuda.get_device_properties(0).total_memory
    assert gpus.driver != "unknown"

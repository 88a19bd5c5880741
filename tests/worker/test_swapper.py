"""Loads and saves beside the compute: bits, order, failures, and an end."""

from __future__ import annotations

import math
import time

import pytest
import torch

from naspipe.config.errors import InvariantError
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.engine.events import LayerLoaded, LayerSaved
from naspipe.machine.emulated import EmulatedDevice
from naspipe.machine.host_arena import HostArena
from naspipe.machine.ports import DeviceMemoryError
from naspipe.worker import placement as swapper_module
from naspipe.worker.layers.layout import StateSizes
from naspipe.worker.layers.resident_layer import LayerMemory
from naspipe.worker.placement import SwapError, Swapper
from tests.worker.layers.swapped_layers import MODULES, RECIPES, contents, make_layer, step

LAYERS = [LayerId(FIRST_STREAM, block, 0) for block in range(4)]
SECONDS = 20.0
"""Deadline of every wait."""


class GatedCopy:
    """A copy that is over when its device's gate is open."""

    left_seconds = 0.001

    def __init__(self, device, copy, nbytes):
        self.device, self.copy, self.nbytes = device, copy, nbytes

    def is_over(self):
        if self.nbytes in self.device.broken:
            raise RuntimeError("the bus\nis on fire")
        return self.device.is_open and self.copy.is_over()

    @property
    def nanoseconds(self):
        return self.copy.nanoseconds


class GatedDevice(EmulatedDevice):
    """Copies wait until the gate is open; those of a size in ``broken`` fail."""

    def __init__(self, budget_bytes=1 << 20):
        super().__init__(budget_bytes, 1e15, 0.0)
        self.is_open, self.broken = True, set()

    def _copy(self, way, source, target):
        return GatedCopy(self, super()._copy(way, source, target), source.numel())


class Bench:
    """A swapper, and memories of a few linear layers."""

    def __init__(self, device=None):
        self.device = device or GatedDevice()
        self.swapper = Swapper(self.device)
        arena = HostArena(pin=False, limit_bytes=None)
        sizes = StateSizes(RECIPES["Adam"])
        layers = [make_layer("linear", RECIPES["Adam"]) for _ in LAYERS]
        self.memories = [LayerMemory(layer, sizes, arena) for layer in layers]
        self.layers = layers

    def wait(self, count=1):
        """For so many copies, as an idle stage does."""
        done, deadline = [], time.monotonic() + SECONDS
        while len(done) < count:
            assert time.monotonic() < deadline
            assert self.swapper.left_seconds < SECONDS, "one is under way"
            time.sleep(self.swapper.left_seconds)
            done += self.swapper.take_finished()
        return done

    def load(self, *numbers):
        for number in numbers:
            self.swapper.load(LAYERS[number], self.memories[number])

    def save(self, *numbers):
        for number in numbers:
            self.swapper.save(LAYERS[number], self.memories[number])

    def evict(self, *numbers):
        for number in numbers:
            self.swapper.evict(LAYERS[number], self.memories[number])


@pytest.mark.parametrize("optimizer", ["Adam", "SGD", "Adafactor"])
@pytest.mark.parametrize("name", [*MODULES, "frozen-batch-norm"])
def test_cycles_leave_the_bits_of_a_layer_that_stays(name, optimizer):
    recipe = RECIPES[optimizer]
    layer, twin = make_layer(name, recipe), make_layer(name, recipe)
    memory = LayerMemory(layer, StateSizes(recipe), HostArena(pin=False, limit_bytes=None))
    bench = Bench()
    with bench.swapper as swapper:
        for number in range(4):
            swapper.load(LAYERS[0], memory)
            assert [type(done) for done in bench.wait()] == [LayerLoaded]
            for one in (layer, twin):
                step(one, number)
            memory.adopt_state()
            assert contents(layer) == contents(twin)
            swapper.save(LAYERS[0], memory)
            assert [type(done) for done in bench.wait()] == [LayerSaved]
            swapper.evict(LAYERS[0], memory)
            assert bench.device.used_bytes == 0
            assert contents(layer) == contents(twin)


def test_each_lane_keeps_its_order():
    bench = Bench()
    with bench.swapper:
        bench.load(0, 1)
        bench.wait(2)
        bench.device.is_open = False
        bench.save(1)
        bench.load(3)
        bench.save(0)
        bench.load(2)
        assert bench.swapper.take_finished() == []
        bench.device.is_open = True
        done = bench.wait(4)
    assert [d.layer for d in done if isinstance(d, LayerLoaded)] == [LAYERS[3], LAYERS[2]]
    assert [d.layer for d in done if isinstance(d, LayerSaved)] == [LAYERS[1], LAYERS[0]]


def test_lanes_do_not_wait_for_each_other():
    bench = Bench(EmulatedDevice(1 << 20, bandwidth_bytes_per_second=1e12, latency_seconds=0.2))
    with bench.swapper:
        bench.load(0)
        bench.wait()
        start = time.monotonic()
        bench.save(0)
        bench.load(1)
        assert len(bench.wait(2)) == 2
        assert 0.2 <= time.monotonic() - start < 0.39


def test_a_layer_is_bound_when_it_is_taken_not_when_it_is_copied():
    bench = Bench()
    weight = bench.layers[0].module.weight
    with bench.swapper:
        bench.load(0)
        assert weight.data_ptr() == bench.memories[0].host.data_ptr()
        bench.wait()
        assert weight.data_ptr() != bench.memories[0].host.data_ptr()


def test_a_save_takes_along_what_a_forward_replaced():
    recipe = RECIPES["Adam"]
    layer = make_layer("replacing", recipe)
    memory = LayerMemory(layer, StateSizes(recipe), HostArena(pin=False, limit_bytes=None))
    bench = Bench()
    with bench.swapper as swapper:
        swapper.load(LAYERS[0], memory)
        bench.wait()
        layer.module(torch.ones(2, 5))
        mean = layer.module.mean.clone()
        swapper.save(LAYERS[0], memory)
        bench.wait()
        swapper.evict(LAYERS[0], memory)
    assert torch.equal(dict(layer.tensors())["buffer/mean"], mean)


def test_the_budget_is_checked_at_once():
    bench = Bench(GatedDevice(budget_bytes=2 * 3072))
    with bench.swapper:
        bench.load(0, 1)
        with pytest.raises(DeviceMemoryError):
            bench.load(2)
        bench.wait(2)
        bench.evict(0)
        bench.load(2)
        bench.wait()
        assert bench.device.peak_bytes == 2 * 3072


def test_commands_that_make_no_sense_are_bugs():
    bench = Bench()
    with bench.swapper:
        for command, what in ((bench.save, "saved"), (bench.evict, "evicted")):
            with pytest.raises(InvariantError, match=f"{what}, but is not on the device"):
                command(0)
        bench.device.is_open = False
        bench.load(0)
        with pytest.raises(InvariantError, match="was loaded, but is on the device already"):
            bench.load(0)
        with pytest.raises(InvariantError, match="evicted before it was told to be loaded"):
            bench.evict(0)
        bench.device.is_open = True
        bench.wait()
        bench.device.is_open = False
        bench.save(0)
        for command in (bench.evict, bench.save):
            with pytest.raises(InvariantError, match="before it was told to be saved"):
                command(0)
        bench.device.is_open = True
        bench.wait()
        bench.evict(0)


def test_a_failure_surfaces_with_its_layer():
    bench = Bench()
    bench.device.broken.add(3072)
    with bench.swapper:
        bench.load(0)
        with pytest.raises(SwapError) as raised:
            bench.wait()
    assert str(raised.value) == (
        "layer linear: copying its 3072 bytes to device cpu failed: "
        "RuntimeError: the bus is on fire"
    )
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_a_copy_that_cannot_begin_fails_with_its_layer(monkeypatch):
    bench = Bench()

    def refuse(host, device):
        raise RuntimeError("no queue")

    monkeypatch.setattr(bench.device, "copy_in", refuse)
    with bench.swapper, pytest.raises(SwapError, match="3072 bytes to device cpu failed: Runtime"):
        bench.load(0)


def test_a_failure_that_nobody_took_surfaces_at_the_end():
    bench = Bench()
    with pytest.raises(SwapError, match="from device cpu failed"), bench.swapper:
        bench.load(0)
        bench.wait()
        bench.device.broken.add(3072)
        bench.save(0)


def test_the_end_finishes_what_was_asked_for():
    bench = Bench()
    with bench.swapper:
        bench.load(0, 1, 2)
        bench.wait(3)
        bench.memories[1].piece[:4] = torch.tensor([1, 2, 3, 4], dtype=torch.uint8)
        bench.save(0, 1, 2)
    assert bench.memories[1].host[:4].tolist() == [1, 2, 3, 4]
    assert bench.swapper.take_finished() == []


def test_an_exception_waits_for_nothing():
    bench = Bench()
    with pytest.raises(KeyError), bench.swapper:
        bench.device.is_open = False
        bench.load(0, 1, 2)
        raise KeyError


def test_a_copy_that_does_not_end_has_a_deadline(monkeypatch):
    monkeypatch.setattr(swapper_module, "CLOSE_SECONDS", 0.05)
    bench = Bench()
    message = "the layers 0:1.0 did not end within 0.05 s of closing"
    with pytest.raises(SwapError, match=message), bench.swapper:
        bench.device.is_open = False
        bench.load(1)


def test_an_idle_swapper_ends_in_silence():
    with Swapper(EmulatedDevice(1)) as swapper:
        assert swapper.left_seconds == math.inf
    assert swapper.take_finished() == []
    assert swapper.loaded.bytes_per_second == 0


def test_traffic_is_counted_each_way():
    bench = Bench(EmulatedDevice(1 << 20, bandwidth_bytes_per_second=1e12, latency_seconds=0.01))
    with bench.swapper as swapper:
        bench.load(0, 1)
        bench.wait(2)
        bench.save(0)
        bench.wait()
    assert (swapper.loaded.nbytes, swapper.saved.nbytes) == (2 * 3072, 3072)
    assert (swapper.loaded.copies, swapper.saved.copies) == (2, 1)
    assert swapper.loaded.nanoseconds > 20_000_000 and swapper.saved.nanoseconds > 10_000_000
    assert 0 < swapper.saved.bytes_per_second <= 3072 / 0.01

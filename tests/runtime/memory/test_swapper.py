"""Loads and saves on worker threads: bits, order, waking, failures, and an end."""

from __future__ import annotations

import threading

import pytest
import torch

from naspipe.core.errors import InvariantError
from naspipe.core.ids import FIRST_STREAM, LayerId
from naspipe.runtime.devices.device_budget import DeviceMemoryError
from naspipe.runtime.devices.emulated_device import EmulatedDevice
from naspipe.runtime.devices.host_arena import HostArena
from naspipe.runtime.layers.layer_layout import StateSizes
from naspipe.runtime.layers.resident_layer import LayerMemory
from naspipe.runtime.memory import swapper as swapper_module
from naspipe.runtime.memory.swapper import SwapError, SwapKind, Swapper
from tests.runtime.layers.swapped_layers import MODULES, RECIPES, contents, make_layer, step

LAYERS = [LayerId(FIRST_STREAM, block, 0) for block in range(4)]
SECONDS = 20.0
"""Deadline of every wait."""


class GatedDevice(EmulatedDevice):
    """Copies wait until the gate is open; those of a size in ``broken`` fail."""

    def __init__(self, budget_bytes=1 << 20):
        super().__init__(budget_bytes, 1e12, 0.0)
        self.gate, self.broken, self.threads = threading.Event(), set(), set()
        self.gate.set()
        self.begun = set()

    def begin_thread(self):
        self.begun.add(threading.current_thread().name)

    def _copy(self, source, target):
        name = threading.current_thread().name
        assert name in self.begun, "a GPU is made a thread's own before its first copy"
        self.threads.add(name)
        if not self.gate.wait(SECONDS):
            raise TimeoutError
        if source.numel() in self.broken:
            raise RuntimeError("the bus\nis on fire")
        super()._copy(source, target)


class Bench:
    """A swapper, its wake-ups, and memories of a few linear layers."""

    def __init__(self, device=None):
        self.device = device or GatedDevice()
        self.woken = threading.Semaphore(0)
        self.swapper = Swapper(self.device, self.woken.release)
        arena = HostArena(pin=False, limit_bytes=None)
        sizes = StateSizes(RECIPES["Adam"])
        layers = [make_layer("linear", RECIPES["Adam"]) for _ in LAYERS]
        self.memories = [LayerMemory(layer, sizes, arena) for layer in layers]
        self.layers = layers

    def wait(self, count=1):
        for _ in range(count):
            assert self.woken.acquire(timeout=SECONDS)
        return self.swapper.take_finished()

    def load(self, *numbers):
        for number in numbers:
            self.swapper.load(LAYERS[number], self.memories[number])

    def save(self, *numbers):
        for number in numbers:
            self.swapper.save(LAYERS[number], self.memories[number])

    def evict(self, *numbers):
        for number in numbers:
            self.swapper.evict(LAYERS[number], self.memories[number])


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("naspipe-")] == []


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
            assert [done.kind for done in bench.wait()] == [SwapKind.LOADED]
            for one in (layer, twin):
                step(one, number)
            memory.adopt_state()
            assert contents(layer) == contents(twin)
            swapper.save(LAYERS[0], memory)
            assert [done.kind for done in bench.wait()] == [SwapKind.SAVED]
            swapper.evict(LAYERS[0], memory)
            assert bench.device.used_bytes == 0
            assert contents(layer) == contents(twin)


def test_each_lane_keeps_its_order():
    bench = Bench()
    with bench.swapper:
        bench.load(0, 1)
        bench.wait(2)
        bench.device.gate.clear()
        bench.save(1)
        bench.load(3)
        bench.save(0)
        bench.load(2)
        assert bench.swapper.take_finished() == []
        bench.device.gate.set()
        done = bench.wait(4)
    assert [d.layer for d in done if d.kind == "loaded"] == [LAYERS[3], LAYERS[2]]
    assert [d.layer for d in done if d.kind == "saved"] == [LAYERS[1], LAYERS[0]]
    assert all(d.start_ns <= d.end_ns for d in done)
    assert bench.device.threads == {"naspipe-loaded", "naspipe-saved"}
    assert threading.current_thread().name not in bench.device.threads


def test_lanes_do_not_wait_for_each_other():
    """Each copy waits until one of the other lane is under way."""
    bench = Bench()
    with bench.swapper:
        bench.load(0)
        bench.wait()
        meeting = threading.Barrier(2, timeout=SECONDS)
        bench.device.gate.wait = lambda _: meeting.wait() >= 0
        bench.save(0)
        bench.load(1)
        assert len(bench.wait(2)) == 2


def test_a_layer_is_bound_when_it_is_taken_not_when_it_is_copied():
    bench = Bench()
    weight = bench.layers[0].module.weight
    with bench.swapper:
        bench.load(0)
        assert bench.woken.acquire(timeout=SECONDS)
        assert weight.data_ptr() == bench.memories[0].host.data_ptr()
        bench.swapper.take_finished()
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
        bench.device.gate.clear()
        bench.load(0)
        with pytest.raises(InvariantError, match="was loaded, but is on the device already"):
            bench.load(0)
        with pytest.raises(InvariantError, match="evicted before it was told to be loaded"):
            bench.evict(0)
        bench.device.gate.set()
        bench.wait()
        bench.device.gate.clear()
        bench.save(0)
        for command in (bench.evict, bench.save):
            with pytest.raises(InvariantError, match="before it was told to be saved"):
                command(0)
        bench.device.gate.set()
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
        assert bench.wait(3)
        bench.save(0, 1, 2)
    assert [d.layer for d in bench.swapper.take_finished()] == LAYERS[:3]


def test_an_exception_drops_what_has_not_begun():
    bench = Bench()
    with pytest.raises(KeyError), bench.swapper:
        bench.device.gate.clear()
        bench.load(0, 1, 2)
        threading.Timer(0.05, bench.device.gate.set).start()
        raise KeyError
    assert len(bench.swapper.take_finished()) <= 1


def test_a_copy_that_does_not_end_has_a_deadline(monkeypatch):
    monkeypatch.setattr(swapper_module, "CLOSE_SECONDS", 0.05)
    bench = Bench()
    message = "the layers 0:1.0 did not end within 0.05 s of closing"
    with pytest.raises(SwapError, match=message), bench.swapper:
        bench.device.gate.clear()
        bench.load(1)
    bench.device.gate.set()
    for thread in threading.enumerate():
        if thread.name.startswith("naspipe-"):
            thread.join(SECONDS)


def test_an_idle_swapper_ends_in_silence():
    with Swapper(EmulatedDevice(1), lambda: None) as swapper:
        threads = [t for t in threading.enumerate() if t.name.startswith("naspipe-")]
        assert len(threads) == 2
        assert not any(thread.daemon for thread in threads)
    assert swapper.take_finished() == []
    assert swapper.loaded.bytes_per_second == 0


def test_traffic_is_counted_each_way():
    bench = Bench(EmulatedDevice(1 << 20, bandwidth_bytes_per_second=1e12, latency_seconds=0.01))
    with bench.swapper as swapper:
        bench.load(0, 1)
        done = bench.wait(2)
        bench.save(0)
        done += bench.wait()
    assert (swapper.loaded.nbytes, swapper.saved.nbytes) == (2 * 3072, 3072)
    took = [d.end_ns - d.start_ns for d in done]
    assert swapper.loaded.nanoseconds == sum(took[:2]) >= 20_000_000
    assert swapper.saved.nanoseconds == took[2]
    assert 0 < swapper.saved.bytes_per_second <= 3072 / 0.01

"""The emulated device: its own poisoned memory, a budget, a pace."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import InvariantError
from naspipe.machine import emulated as emulated_device
from naspipe.machine.emulated import EmulatedDevice
from naspipe.machine.ports import DeviceMemoryError
from tests.worker.layers.swapped_layers import finish

FAST = {"bandwidth_bytes_per_second": 1e12, "latency_seconds": 0.0}


def test_copies_keep_the_bytes_and_memory_is_separate():
    device = EmulatedDevice(4096, **FAST)
    host = torch.arange(1024).to(torch.uint8)
    there, back = device.allocate(1024), torch.zeros(1024, dtype=torch.uint8)
    finish(device.copy_in(host, there))
    kept = host.clone()
    host.zero_()
    finish(device.copy_out(there, back))
    assert torch.equal(back, kept)


def test_a_layer_that_is_used_before_it_is_there_shows():
    device = EmulatedDevice(4096, bandwidth_bytes_per_second=1e12, latency_seconds=0.05)
    there = device.allocate(64)
    copy = device.copy_in(torch.zeros(64, dtype=torch.uint8), there)
    assert not copy.is_over() and 0 < copy.left_seconds <= 0.05
    assert bool(there.view(torch.float32).isnan().all())
    finish(copy)
    assert copy.left_seconds == 0 and not there.any()


def test_memory_is_poisoned_before_a_load_and_after_an_eviction():
    device = EmulatedDevice(4096, **FAST)
    memory = device.allocate(64)
    floats = memory.view(torch.float32)
    assert bool(floats.isnan().all())
    assert bool(memory.view(torch.bfloat16).isnan().all())
    floats.zero_()
    device.free(memory)
    assert bool(floats.isnan().all())
    other = device.allocate(4096)
    with pytest.raises(DeviceMemoryError):
        device.refill(memory)
    device.free(other)
    device.refill(memory)
    assert bool(floats.isnan().all())
    assert (device.used_bytes, device.peak_bytes) == (64, 4096)


def test_the_system_may_take_what_was_freed_first(monkeypatch):
    """Memory would otherwise grow by every layer that was ever on the device."""
    size = 16 << 20
    monkeypatch.setattr(emulated_device, "KEPT_BYTES", 4 * size)
    device = EmulatedDevice(8 * size, **FAST)
    memory = [device.allocate(size) for _ in range(6)]
    for each in memory:
        each.fill_(1)
    before = kept_kilobytes()
    for each in memory[:4]:
        device.free(each)
    assert abs(before - kept_kilobytes()) < 4 << 10, "a moderate amount is kept at hand"
    device.refill(memory[1])
    device.free(memory[4])
    assert abs(before - kept_kilobytes()) < 4 << 10, "what came back is not among it"
    device.free(memory[5])
    device.refill(memory[0])
    assert int(memory[0][0]) == emulated_device.POISON, "also where the system took it"
    assert before - kept_kilobytes() >= (size >> 10) - 4096


def kept_kilobytes():
    """Resident memory but for pages that the system may take."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    found = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return found["Rss"] - found["LazyFree"]


def test_the_budget_is_a_guard():
    device = EmulatedDevice(1024, **FAST)
    memory = device.allocate(1000)
    with pytest.raises(DeviceMemoryError) as raised:
        device.allocate(25)
    assert str(raised.value) == (
        "device cpu: the layers' budget is 1024 bytes, 1000 are used and 25 more were asked for; "
        "evict first"
    )
    assert device.used_bytes == 1000
    device.allocate(24)
    device.free(memory)
    assert (device.used_bytes, device.peak_bytes) == (24, 1024)


def test_memory_is_freed_once_and_by_its_own_tensor():
    device = EmulatedDevice(1024, **FAST)
    memory = device.allocate(1024)
    with pytest.raises(InvariantError, match="1024 bytes were freed that are not allocated"):
        device.free(memory[:])
    device.free(memory)
    with pytest.raises(InvariantError):
        device.free(memory)
    assert device.used_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 900), st.booleans()), max_size=20))
def test_what_is_counted(steps):
    """Allocations beside a model: sums, the peak, the guard, alignment."""
    device, live, peak = EmulatedDevice(2000, **FAST), [], 0
    for size, frees in steps:
        used = sum(map(len, live))
        if used + size <= 2000:
            live.append(device.allocate(size))
        else:
            with pytest.raises(DeviceMemoryError):
                device.allocate(size)
        assert all(memory.data_ptr() % 512 == 0 for memory in live)
        spans = sorted((memory.data_ptr(), len(memory)) for memory in live if len(memory))
        assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(spans))
        peak = max(peak, sum(map(len, live)))
        if frees and live:
            device.free(live.pop(0))
        assert (device.used_bytes, device.peak_bytes) == (sum(map(len, live)), peak)


@pytest.mark.parametrize("way", ["copy_in", "copy_out"])
def test_copies_take_the_time_they_should(way):
    device = EmulatedDevice(1 << 20, bandwidth_bytes_per_second=1e7, latency_seconds=0.02)
    one, other = torch.zeros(300_000, dtype=torch.uint8), device.allocate(300_000)
    pair = (one, other) if way == "copy_in" else (other, one)
    start = time.monotonic()
    copy = getattr(device, way)(*pair)
    assert time.monotonic() - start < 0.05, "nobody waits"
    finish(copy)
    assert 0.05 <= time.monotonic() - start < 1.0
    assert 50_000_000 < copy.nanoseconds < 1_000_000_000


def test_the_emulated_device_computes_at_once():
    device = EmulatedDevice(1)
    assert device.mark() is None
    device.wait(None)
    assert (device.name, device.torch_device) == ("cpu", torch.device("cpu"))


def test_copies_of_one_way_come_one_after_another():
    device = EmulatedDevice(1 << 20, bandwidth_bytes_per_second=1e12, latency_seconds=1e-4)
    one, other = torch.zeros(512, dtype=torch.uint8), device.allocate(512)
    start = time.monotonic()
    copies = [device.copy_in(one, other) for _ in range(200)]
    back = device.copy_out(other, one)
    assert back.end < copies[99].end
    finish(copies[-1])
    assert 0.0198 <= time.monotonic() - start < 1.0
    assert all(copy.is_over() for copy in copies)

"""Waits for the GPU are named in one place, written down as they are there, and counted."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from naspipe.machine import device_waits
from naspipe.machine.cuda import CudaClock, CudaDevice
from naspipe.machine.device_waits import Wait, on_host, per_block
from naspipe.machine.emulated import EmulatedDevice
from naspipe.machine.staging import Staging
from tests.happens_before.clocks import Recorder
from tests.happens_before.torch_on_gpu import GPU, torch_on_gpu
from tests.test_architecture import ROOT, product, tree

WAITING = ("synchronize", "cpu", "item")
"""Methods that wait for a device."""

ON_STAGES = ("worker", "wire", "machine", "jobs", "distill", "evaluation", "launch", "profiling")
"""Packages whose code runs in stages, where each wait for a device is counted."""

ELSEWHERE = {
    "naspipe/jobs/batches_apart.py": {"cpu"},  # of a batch, in a process that is no stage
    "naspipe/jobs/losses.py": {"cpu"},  # of a loss, once, before a run
    "naspipe/machine/device_waits.py": {"synchronize", "cpu"},
    "naspipe/distill/admission_check.py": {"cpu"},
    "naspipe/distill/teachers.py": {"cpu"},  # of what a user hands over, before a run
    "naspipe/worker/layers/used_entries.py": {"cpu"},  # of a gradient, in a check
    "naspipe/distill/teacher_server.py": {"cpu"},
}
"""Files of these packages that may call them: the one place, and processes that are no stages."""


def waiting_calls(module: ast.Module) -> Iterator[str]:
    """Their names; what waits without a call (``float(tensor)``) cannot be seen."""
    for node in ast.walk(module):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in WAITING:
            yield called.attr


def test_the_page_lists_the_waits_as_they_are():
    page = (ROOT / "docs/gpus.md").read_text("utf-8")
    section = page.partition("## What waits for the GPU\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    assert rows[2:] == [[why.name.lower(), *why.value] for why in Wait]


def test_no_wait_goes_uncounted():
    runtime = [path for path in product() if path.startswith("naspipe/")]
    found = {path: set(waiting_calls(tree(path))) for path in runtime}
    stages = {
        path: names if path.split("/")[1] in ON_STAGES else names & {"synchronize"}
        for path, names in found.items()
    }
    assert {path: names for path, names in stages.items() if names} == ELSEWHERE


@pytest.mark.parametrize(
    "line", ["torch.cuda.synchronize()", "queue.synchronize()", "x.cpu()", "f(loss).item()"]
)
def test_an_uncounted_wait_is_seen(line):
    assert list(waiting_calls(ast.parse(f"def f():\n    {line}")))
    assert not list(waiting_calls(ast.parse("wait_for(queue, Wait.BLOCK); x.items(); is_cpu")))


def test_every_wait_is_used():
    used = Counter(
        node.attr
        for path in product()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "Wait"
    )
    assert set(used) == {why.name for why in Wait}


def test_waits_for_a_gpu_are_counted():
    with torch_on_gpu(Recorder()) as torch_:
        device_waits.begin()
        device, staging = CudaDevice(0, 1 << 15), Staging(GPU)
        there = device.allocate(512)
        host, back = (torch_.pinned_memory.allocate(512) for _ in range(2))
        copies = device.copy_in(host, there), device.copy_out(device.allocate(512), back)
        assert not any(copy.is_over() for copy in copies), "nobody waits for copies"
        torch_.gpu.finish()
        assert all(copy.is_over() for copy in copies)
        device.wait(device.mark())
        staging.wait()  # nothing was sent
        staging.to_host(there)
        staging.wait()
        on_host(there, Wait.LOSS)
        on_host(torch.zeros(1), Wait.LOSS)
    assert per_block(2) == {"block": 0.5, "send": 0.5, "loss": 0.5}
    device_waits.begin()
    assert per_block(2) == {}


def test_the_clock_of_a_gpu_waits_for_its_last_mark(monkeypatch):
    class Mark:
        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return 2.0

    device_waits.begin()
    assert CudaClock(GPU).between_ns([Mark(), Mark()]) == [2_000_000]
    assert per_block(1) == {"clock": 1.0}


def test_an_emulated_device_counts_as_a_gpu_would():
    device_waits.begin()
    device = EmulatedDevice(1 << 20, latency_seconds=0)
    there = device.allocate(512)
    device.copy_in(torch.zeros(512, dtype=torch.uint8), there)
    device.wait(device.mark())
    assert per_block(1) == {"block": 1.0}

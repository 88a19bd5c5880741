"""A device that is too small ends the run with one line that says what would have done."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.config.messages import in_python
from naspipe.machine.out_of_memory import LayerUse, explain_shortage, read_shortage
from naspipe.store.run_directory import RunDirectory
from naspipe.worker.blocks.compute import StageCompute
from naspipe.worker.blocks.updates import StageUpdates
from tests.equivalence import spaces

MIB, GIB = 2**20, 2**30
LOSS = nn.CrossEntropyLoss()


def message(requested, free, allocated, allowed=""):
    """As torch 2.13 words it."""
    return (
        f"CUDA out of memory. Tried to allocate {requested}. GPU 0 has a total capacity of 44.39 "
        f"GiB of which {free} is free. Including non-PyTorch memory, this process has 44.28 GiB "
        f"memory in use. {allowed}Of the allocated memory {allocated} is allocated by PyTorch, and "
        f"69.68 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
        f"large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        f"fragmentation.  See documentation for Memory Management"
    )


def test_torchs_message_is_read():
    found = read_shortage(message("130.00 MiB", "109.31 MiB", "43.70 GiB"))
    assert 130 * MIB < found.requested_bytes < 130.01 * MIB
    assert 109.3 * MIB < found.free_bytes < 109.31 * MIB
    assert found.allocated_bytes == int(43.7 * GIB)


def test_a_share_of_the_gpu_counts_as_all_of_it():
    found = read_shortage(message("2.00 MiB", "20.00 GiB", "9.93 GiB", "10.00 GiB allowed; "))
    assert found.free_bytes < 2 * MIB


def test_whole_bytes_are_exact():
    found = read_shortage("Tried to allocate 512 bytes. GPU of which 0 bytes is free.")
    assert found == (512, 0, None)


@pytest.mark.parametrize("text", ["", "injected", "Tried to allocate 2.00 MiB."])
def test_another_message_tells_nothing(text):
    assert read_shortage(text) is None


def explained(text, layers, kept_bytes=1000):
    line = str(explain_shortage(torch.OutOfMemoryError(text), "0.7F@1", layers, kept_bytes))
    assert "\n" not in line and line.startswith("out of device memory in 0.7F@1, also after all")
    return line


SHORT = "Tried to allocate 300 bytes. GPU 0 has a capacity of 9 bytes of which 100 bytes is free."


def test_the_budget_that_would_have_done_is_stated():
    line = explained(SHORT, LayerUse(5000, 8000, 2000))
    assert "300 bytes were asked for, 100 are free, layers hold 5000 bytes (budget 8000)" in line
    assert "passes under way 1000;" in line
    assert "--memory-budget 4800;" in line
    assert "--memory-budget 4800;" in explained(SHORT, LayerUse(5000)), "no budget as yet"


@pytest.mark.parametrize("layers", [LayerUse(5000, 8000, 4801), LayerUse(200), LayerUse(0)])
def test_where_no_budget_would_have_done_that_is_said(layers):
    line = explained(SHORT, layers)
    assert "no memory budget would have done" in line and "smaller batch" in line
    assert "--memory-budget" not in line
    assert ("the least is 4801, and 4800 bytes would be left" in line) == bool(layers.least_bytes)


def test_an_unknown_message_is_passed_on():
    line = explained("injected", LayerUse(5000, 8000, 2000))
    assert "torch says OutOfMemoryError: injected" in line and "5000 bytes (budget 8000)" in line


@pytest.fixture
def limited(monkeypatch):
    """A device of so many bytes for layers and passes together; each block takes 4 KiB more."""
    limits, run_block = [0], StageCompute.run_block

    def check(compute, task, layer, version, option):
        layers = compute.placement.layer_use(stored for _, stored in compute.stores[0].items())
        free = limits[0] - layers.used_bytes - compute.kept_bytes
        if free < 4096:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate 4.00 KiB. GPU 0 has a total capacity of "
                f"{limits[0]} bytes of which {max(0, free)} bytes is free."
            )
        return run_block(compute, task, layer, version, option)

    monkeypatch.setattr(StageCompute, "run_block", check)
    return limits


def train(path, stages, **execution):
    return npp.train(
        spaces.mixed(), spaces.vectors, LOSS, steps=12, seed=1, stages=stages, run_dir=path,
        execution={"order": "paper", "partition": "static", **execution},
    )  # fmt: skip


@pytest.mark.parametrize("stages", [1, 2])
def test_a_run_with_the_stated_budget_goes_through(tmp_path, limited, stages):
    limited[0] = 10**9
    ample = train(tmp_path / "ample", stages, memory_budget="10x")
    stage = max(ample.manifest["measured"]["stages"], key=lambda each: each["device_peak_bytes"])
    limited[0] = int(stage["device_peak_bytes"])
    budgets, budget = [], "10x"
    for attempt in range(8):
        path = tmp_path / f"limited-{attempt}"
        try:
            run = train(path, stages, memory_budget=budget)
            break
        except ConfigError as error:
            line = str(error)
        assert "\n" not in line and re.search(r"in 0\.\d+[FB]@\d block \d+ \(layer ", line)
        assert in_python(RunDirectory(path).read_manifest()["failure"]) == line
        budget = re.search(r"memory_budget=(\d+)", line)[1]
        budgets.append(int(budget))
    assert budgets and all(one > other for one, other in pairwise(budgets)), budgets
    assert [loss.bits for loss in run.directory.read_losses()] == [
        loss.bits for loss in ample.directory.read_losses()
    ]


def test_a_failing_write_is_no_second_try(tmp_path, monkeypatch, computes_here):
    """A step half taken cannot be taken again: the first shortage ends the run."""
    calls = []

    def write(*arguments):
        calls.append(arguments)
        raise torch.OutOfMemoryError(SHORT)

    monkeypatch.setattr(StageUpdates, "_write", write)
    with pytest.raises(ConfigError, match=r"out of device memory in 0\.0 WRITE of block"):
        train(tmp_path / "run", 1, memory_budget="2x")
    assert len(calls) == 1


def test_the_second_try_has_the_memory_of_the_first(tmp_path, monkeypatch):
    """The first try's traceback would keep its tensors alive while the second one runs."""
    import weakref

    held, run_block = [], StageCompute.run_block

    def run_once_in_vain(compute, task, layer, version, option):
        if not held:
            scratch = torch.zeros(1000)
            held.append(weakref.ref(scratch))
            raise torch.OutOfMemoryError(SHORT)
        assert held[0]() is None
        return run_block(compute, task, layer, version, option)

    monkeypatch.setattr(StageCompute, "run_block", run_once_in_vain)
    train(tmp_path / "run", 1)


@pytest.mark.parametrize("stages", [1, 2])
def test_host_memory_that_runs_out_in_a_stage_is_one_line(tmp_path, monkeypatch, stages):
    """As when the machine has less than it was thought to have: no check can know that."""
    monkeypatch.setattr("naspipe.plan.pipeline.check_host_memory", lambda limit, needs: None)
    with pytest.raises(ConfigError, match=r"^host memory for layers: the limit is 9000 b.*$"):
        train(tmp_path / "run", stages, memory_budget="2x", host_memory="9000")
    assert RunDirectory(tmp_path / "run").read_manifest()["status"] == "failed"

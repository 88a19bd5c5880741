"""Devices and data paths that are not there are refused in one line, before anything runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import naspipe as npp
from naspipe.checks.machine import check_data_path, check_device, check_shared_gpus
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.machine.gpus import Gpus
from naspipe.plan.costs import CostTable, LayerCost
from tests.equivalence import spaces


@pytest.mark.parametrize(
    ("device", "count", "message"),
    [
        ("cuda", 0, "device cuda: found no CUDA device on this machine; choose --device cpu"),
        ("cuda:2", 2, "device cuda:2: found cuda:0 to cuda:1 on this machine"),
    ],
)
def test_devices(device, count, message):
    with pytest.raises(ConfigError, match=message):
        check_device(device, count)
    check_device(device, count + 1)
    check_device("cpu", 0)


def some(count):
    return Gpus(("one",) * count, (100,) * count)


@pytest.mark.parametrize("path", ["nccl", "cuda_ipc"])
@pytest.mark.parametrize(
    ("changes", "count", "message"),
    [
        ({"device": "cuda"}, 3, "a GPU for each of 4 stages, found 3; choose --stages 3 or less"),
        ({"device": "cuda:1"}, 8, "expected --device cuda, found cuda:1; use it, or --set"),
        ({}, 8, "expected --device cuda, found cpu"),
    ],
)
def test_a_way_between_gpus_wants_one_for_each_stage(path, changes, count, message):
    with pytest.raises(ConfigError, match=f"^data_path={path}: .*{message}"):
        check_data_path(Execution(stages=4, data_path=path, **changes), some(count))
    check_data_path(Execution(stages=4, **changes), some(count))


@pytest.mark.parametrize("path", ["nccl", "cuda_ipc"])
def test_groups_need_gpus_of_their_own(path):
    execution = Execution(stages=2, groups=2, device="cuda", data_path=path)
    with pytest.raises(ConfigError, match="a GPU for each of 4 stages, found 3"):
        check_data_path(execution, some(3))


@pytest.mark.parametrize(
    ("changes", "apart", "message"),
    [
        ({"transport": "tcp"}, (), "expected --set transport=ipc, .* found tcp; use it, or --set"),
        ({}, ((0, 2),), "found that cuda:0 cannot read that of cuda:2; use --set data_path=shm"),
    ],
)
def test_cuda_ipc_wants_one_host_and_gpus_that_reach_each_other(changes, apart, message):
    here = replace(some(4), apart=apart)
    execution = Execution(stages=3, data_path="cuda_ipc", device="cuda", **changes)
    with pytest.raises(ConfigError, match=message):
        check_data_path(execution, here)
    check_data_path(Execution(stages=2, data_path="cuda_ipc", device="cuda"), here)


def test_a_run_that_cannot_have_cuda_ipc_writes_nothing(tmp_path):
    with pytest.raises(ConfigError, match="data_path=cuda_ipc: expected device='cuda', found cpu"):
        npp.train(
            spaces.mixed(), spaces.vectors, torch.nn.CrossEntropyLoss(), steps=4, stages=2,
            execution={"data_path": "cuda_ipc"}, run_dir=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_nccl_with_a_gpu_for_each_stage(monkeypatch):
    execution = Execution(stages=4, data_path="nccl", device="cuda")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    check_data_path(execution, some(4))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(ConfigError, match="a torch that was built with NCCL"):
        check_data_path(execution, some(4))


def test_an_unknown_data_path():
    with pytest.raises(ConfigError, match="expected shm or zmq or nccl or cuda_ipc, found 'rdma'"):
        Execution(data_path="rdma")


@pytest.mark.parametrize(
    ("device", "budgets", "message"),
    [
        (
            "cuda",
            [60, 60, 50, 30],
            r"cuda:0: expected .* its 100 bytes .* 0, 2 .* 110;.* 50",
        ),
        (
            "cuda:1",
            [60, 60],
            r"cuda:1: expected .* its 90 bytes .* stages 0, 1 .*found 120",
        ),
    ],
)
def test_stages_that_share_a_gpu_share_its_memory(device, budgets, message):
    with pytest.raises(ConfigError, match=message):
        check_shared_gpus(device, budgets, (100, 90))
    check_shared_gpus(device, [each // 2 for each in budgets], (100, 90))
    check_shared_gpus("cpu", budgets, ())


def test_a_run_whose_stages_do_not_fit_their_gpu_writes_nothing(tmp_path, monkeypatch):
    here = Gpus(names=("one",), memory_bytes=(30_000,))
    monkeypatch.setattr("naspipe.api.training.find_gpus", lambda: here)
    costs = [CostTable({(block, 0): LayerCost(10, 20, 5) for block in range(8)})]
    monkeypatch.setattr("naspipe.api.training.planning_costs", lambda *_: costs)
    with pytest.raises(ConfigError, match=r"^device cuda:0: expected budgets of at most its 30000"):
        npp.train(
            spaces.mixed(), spaces.vectors, torch.nn.CrossEntropyLoss(), steps=4, stages=2,
            execution={"device": "cuda", "memory_budget": "20000"},
            run_dir=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()

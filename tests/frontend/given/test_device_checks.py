"""Devices and data paths that are not there are refused in one line, before anything runs."""

from __future__ import annotations

import pytest
import torch

import naspipe as npp
from naspipe.core.config import Execution
from naspipe.core.errors import ConfigError
from naspipe.frontend.given.input_checks import check_data_path, check_device, check_shared_gpus
from naspipe.planning.cost import CostTable, LayerCost
from naspipe.runtime.devices.gpus import Gpus
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


@pytest.mark.parametrize(
    ("changes", "count", "message"),
    [
        ({"device": "cuda"}, 3, "a GPU for each of 4 stages, found 3; choose --stages 3 or less"),
        ({"device": "cuda:1"}, 8, "expected --device cuda, found cuda:1; use it, or --set"),
        ({}, 8, "expected --device cuda, found cpu"),
    ],
)
def test_nccl_wants_a_gpu_for_each_stage(changes, count, message):
    execution = Execution(stages=4, data_path="nccl", **changes)
    with pytest.raises(ConfigError, match=message):
        check_data_path(execution, count)
    check_data_path(Execution(stages=4, **changes), count)


def test_nccl_with_a_gpu_for_each_stage(monkeypatch):
    execution = Execution(stages=4, data_path="nccl", device="cuda")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    check_data_path(execution, 4)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(ConfigError, match="a torch that was built with NCCL"):
        check_data_path(execution, 4)


def test_an_unknown_data_path():
    with pytest.raises(ConfigError, match="data_path: expected zmq or nccl, found 'rdma'"):
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
    monkeypatch.setattr("naspipe.frontend.training.training.find_gpus", lambda: here)
    costs = [CostTable({(block, 0): LayerCost(10, 20, 5) for block in range(8)})]
    monkeypatch.setattr(
        "naspipe.frontend.training.training.planning_costs", lambda workloads, execution: costs
    )
    with pytest.raises(ConfigError, match=r"^device cuda:0: expected budgets of at most its 30000"):
        npp.train(
            spaces.mixed(), spaces.vectors, torch.nn.CrossEntropyLoss(), steps=4, stages=2,
            execution={"device": "cuda", "memory_budget": "20000"},
            run_dir=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()

"""Memory settings that cannot be: status 2, one line that helps, and nothing written."""

from __future__ import annotations

import re

import pytest
import torch

from naspipe.cli.main import main
from naspipe.store.run_directory import RunDirectory
from tests.cli.refusals import MINE, Refusal, expect

FORMS = "bytes, as in 512MiB, or a number of subnets, as in 3x"
BUDGETS = [
    "lots", "0", "-1", "0x", "-3x", "x", "3 subnets", "3x5", "1e9", "nan", "inf", "12QB", "1.5.2GB",
    "3xx", "0.0000001x", "1" * 16, "\u0661x", " ",
]  # fmt: skip


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_malformed_budget(refused: Refusal, budget: str) -> None:
    line = refused(*MINE, f"--memory-budget={budget}")
    expect(line, f"memory_budget: expected {FORMS}, found {budget!r}")


@pytest.mark.parametrize("setting", ["host_memory", "activation_memory"])
@pytest.mark.parametrize("limit", ["3x", "-2GB", "none", "0", "1e9"])
def test_a_malformed_limit(refused: Refusal, setting: str, limit: str) -> None:
    line = refused(*MINE, "--set", f"{setting}={limit}")
    expect(line, f"{setting}: expected bytes, as in 2GB, found {limit!r}")


@pytest.mark.parametrize("stages", ["1", "2"])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_budget_below_the_least_names_the_least(
    refused: Refusal, capsys: pytest.CaptureFixture[str], optimizer: str, stages: str
) -> None:
    words = (*MINE, "--stages", stages, "--set", f"optimizer={optimizer}", "--partition", "static")
    line = refused(*words, "--memory-budget", "100")
    expect(line, "memory budget: expected at least", "optimizer state included", "found 100")
    # Where stages need different budgets, the first that is short is named.
    for _ in range(int(stages)):
        least = int(re.search(r"at least (\d+) bytes", line)[1])  # type: ignore[index]
        below = refused(*words, "--memory-budget", str(least - 1))
        expect(below, f"expected at least {least} bytes", f"found {least - 1}")
        status = main(["train", *words, "--memory-budget", str(least), "--run-dir", "at-least"])
        line = capsys.readouterr().err
        if status == 0:
            break
    assert RunDirectory("at-least").read_manifest()["status"] == "complete"


def test_host_memory_below_what_the_stream_takes(refused: Refusal) -> None:
    words = (*MINE, "--memory-budget", "2x", "--set", "optimizer.momentum=0.9")
    line = refused(*words, "--set", "host_memory=1KiB")
    expect(line, "host_memory: expected at least", "on stage 0", "found 1024", "raise the limit")
    least = int(re.search(r"at least (\d+) bytes", line)[1])  # type: ignore[index]
    refused(*words, "--set", f"host_memory={least - 1}")
    assert main(["train", *words, "--set", f"host_memory={least}", "--run-dir", "run"]) == 0
    stage = RunDirectory("run").read_manifest()["measured"]["stages"][0]
    assert stage["host_bytes"] == least


def test_activations_that_do_not_fit(refused: Refusal) -> None:
    line = refused(*MINE, "--set", "activation_memory=8")
    expect(line, "activation_memory: expected at least", "found 8", "--recompute")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_a_gpu_that_is_not_there(refused: Refusal, device: str) -> None:
    line = refused(*MINE, "--device", device)
    expect(line, f"device {device}: found no CUDA device on this machine", "--device cpu")


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:12345", "CPU", ""])
def test_a_device_that_is_none(refused: Refusal, device: str) -> None:
    expect(refused(*MINE, f"--device={device}"), f"cpu, cuda or cuda:N, found {device!r}")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("bandwidth=0", "bandwidth: expected more than 0, found 0.0"),
        ("bandwidth=-1", "bandwidth: expected more than 0"),
        ("bandwidth=inf", "bandwidth: expected a finite number"),
        ("bandwidth=nan", "bandwidth: expected"),
        ("latency=-1", "latency: expected 0 to 60 seconds"),
        ("latency=61", "latency: expected 0 to 60 seconds"),
        ("latency=nan", "latency: expected 0 to 60 seconds"),
        ("prefetch=maybe", "--set prefetch: expected true or false, found 'maybe'"),
    ],
)
def test_settings_of_the_emulated_device(refused: Refusal, setting: str, expected: str) -> None:
    expect(refused(*MINE, "--memory-budget", "2x", "--set", setting), expected)

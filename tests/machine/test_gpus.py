"""Looking for GPUs from outside: what is made of the answer, and of none."""

from __future__ import annotations

import msgpack
import pytest
import torch

from naspipe.config.errors import ConfigError
from naspipe.machine import gpus
from naspipe.machine.determinism import describe_environment
from naspipe.machine.gpus import NO_GPUS, Gpus, driver_version, find_gpus

TWO = Gpus(("B", "A", "B"), (8, 9, 8), "13.0", "91200", "580.1")


@pytest.fixture(autouse=True)
def asked_anew():
    find_gpus.cache_clear()
    yield
    find_gpus.cache_clear()


def test_the_answer_is_read():
    answer = msgpack.packb([[["NVIDIA H100", 85]], ["13.0", "91200"], [[0, 1]]])
    found = gpus._read(answer)
    assert (found.names, found.memory_bytes) == (("NVIDIA H100",), (85,))
    assert (found.cuda, found.cudnn, len(found)) == ("13.0", "91200", 1)
    assert found.apart == ((0, 1),)


def test_what_a_device_is_called():
    assert TWO.name_of("cuda:1") == "A"
    assert TWO.name_of("cuda") == "A, B"
    assert NO_GPUS.name_of("cpu") == "cpu"


def test_the_manifest_names_gpus_only_where_they_compute():
    with_gpus = describe_environment("cuda", TWO)
    assert with_gpus["hardware"]["gpu"] == "A, B"
    assert with_gpus["software"]["nvidia_driver"] == "580.1"
    without = describe_environment()
    assert "gpu" not in without["hardware"] and "cuda" not in without["software"]


def test_a_torch_without_cuda_is_not_asked(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    monkeypatch.setattr(gpus, "_ASK", "raise SystemExit(1)")
    assert find_gpus() == NO_GPUS


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_gpus_answers_none(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    assert len(find_gpus()) == 0


@pytest.mark.parametrize(
    ("code", "seconds", "message"),
    [
        ("raise RuntimeError('no\\ndriver answers')", 60, r"failed \(driver answers\); see"),
        ("import time; time.sleep(60)", 0.2, "took longer than 0.2 s; see"),
    ],
)
def test_a_question_without_an_answer_is_one_line(monkeypatch, code, seconds, message):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(gpus, "_ASK", code)
    monkeypatch.setattr(gpus, "_ASK_SECONDS", seconds)
    with pytest.raises(ConfigError, match=message) as caught:
        find_gpus()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX Open Module for x86_64  580.159.04  Release", "580.159.04"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82  Thu", "470.82"),
        ("something else", "unknown"),
    ],
)  # fmt: skip
def test_the_drivers_version(tmp_path, text, version):
    path = tmp_path / "version"
    path.write_text(text)
    assert driver_version(path) == version
    assert driver_version(tmp_path / "none") == "unknown"

"""Devices by name: what is there, what is not, and numbers that make no sense."""

from __future__ import annotations

import pytest
import torch

from naspipe.config.errors import ConfigError
from naspipe.machine.emulated import EmulatedDevice, open_device


def test_a_device_by_name(monkeypatch):
    device = open_device("cpu", 1000, 1e6, 0.5)
    assert isinstance(device, EmulatedDevice)
    device.allocate(1000)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "cuda:1"):
        with pytest.raises(ConfigError, match=f"device {name}: found no CUDA device on this"):
            open_device(name, 1000)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="device cuda:2: found cuda:0 to cuda:1 on this machine"):
        open_device("cuda:2", 1000)


@pytest.mark.parametrize(
    "name", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "cuda:1 ", "cpu:0"]
)
def test_unknown_devices(name):
    with pytest.raises(ConfigError, match="expected cpu, cuda or cuda:N"):
        open_device(name, 1000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cpu", 0), "device cpu: expected a budget of 1 byte or more, found 0"),
        (("cuda", -1), "device cuda: expected a budget of 1 byte or more, found -1"),
        (("cpu", 1, 0.0), "expected a bandwidth above 0 and a latency of 0 or more, found 0 byt"),
        (("cpu", 1, 1.0, -1.0), "found 1 bytes/s and -1 s"),
        (("cpu", 1, float("nan")), "found nan bytes/s"),
    ],
)
def test_numbers_that_make_no_sense(arguments, message):
    with pytest.raises(ConfigError, match=message):
        open_device(*arguments)

"""Devices by name."""

from __future__ import annotations

import re

from naspipe.config.errors import ConfigError
from naspipe.runtime.devices.cuda_device import CudaDevice, count_gpus
from naspipe.runtime.devices.emulated_device import (
    BANDWIDTH_BYTES_PER_SECOND,
    LATENCY_SECONDS,
    EmulatedDevice,
)
from naspipe.runtime.devices.ports import Device


def open_device(
    name: str,
    budget_bytes: int,
    bandwidth_bytes_per_second: float = BANDWIDTH_BYTES_PER_SECOND,
    latency_seconds: float = LATENCY_SECONDS,
) -> Device:
    """A device by name: ``cpu`` is emulated, ``cuda`` and ``cuda:N`` are GPUs.

    Looking for a GPU starts CUDA, which does not survive a fork: call this in the process
    that computes. Bandwidth and latency are the emulated device's.

    Raises:
        ConfigError: for an unknown device, one that is not here, or numbers that make no sense.
    """
    if budget_bytes <= 0:
        raise ConfigError(
            f"device {name}: expected a budget of 1 byte or more, found {budget_bytes}"
        )
    if name == "cpu":
        if not (bandwidth_bytes_per_second > 0 and latency_seconds >= 0):
            raise ConfigError(
                f"device cpu: expected a bandwidth above 0 and a latency of 0 or more, found "
                f"{bandwidth_bytes_per_second:g} bytes/s and {latency_seconds:g} s"
            )
        return EmulatedDevice(budget_bytes, bandwidth_bytes_per_second, latency_seconds)
    match = re.fullmatch(r"cuda(?::([0-9]{1,4}))?", name)
    if match is None:
        raise ConfigError(f"device {name!r:.40}: expected cpu, cuda or cuda:N")
    index, count = int(match[1] or 0), count_gpus()
    if index >= count:
        here = "no CUDA device" if count == 0 else f"cuda:0 to cuda:{count - 1}"
        raise ConfigError(f"device {name}: found {here} on this machine; choose another, or cpu")
    return CudaDevice(index, budget_bytes)

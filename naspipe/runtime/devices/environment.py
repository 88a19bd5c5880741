"""The software and hardware that a run's bits may depend on, for its manifest."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from naspipe.runtime.devices.gpus import NO_GPUS, Gpus

_PACKAGES = ("naspipe", "torch", "numpy", "pyzmq", "msgpack", "safetensors")


_KERNELS = (
    "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE",
)  # fmt: skip


def describe_environment(device: str = "cpu", gpus: Gpus = NO_GPUS) -> dict[str, Any]:
    """Versions of the packages, and what the run computes on.

    Args:
        device: of the run.
        gpus: those of this machine, where the device is one.
    """
    return {
        "software": {
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
            **gpus.software,
        },
        "hardware": {
            "machine": platform.machine(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            **({"kernels": chosen} if (chosen := _chosen_kernels()) else {}),
            **({"gpu": gpus.name_of(device)} if device != "cpu" else {}),
        },
    }


def _chosen_kernels() -> dict[str, str]:
    """Variables that make libraries take other kernels than the processor's: with other bits."""
    return {name: os.environ[name] for name in _KERNELS if os.environ.get(name)}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()

"""The GPUs of the machine, queried in a separate process because CUDA does not survive a fork."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgpack
import torch

from naspipe.config.errors import ConfigError

_ASK = """
import sys, msgpack, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
found = [torch.cuda.get_device_properties(index) for index in range(count)]
sys.stdout.buffer.write(msgpack.packb([
    [[gpu.name, gpu.total_memory] for gpu in found],
    [str(torch.version.cuda), str(torch.backends.cudnn.version() if count else None)],
    [[one, other] for one in range(count) for other in range(count)
     if one != other and not torch.cuda.can_device_access_peer(one, other)],
]))
"""

_ASK_SECONDS = 120.0
_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that torch can use in this process, in the order of torch, and software versions."""

    names: tuple[str, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    cuda: str = ""
    """The CUDA version for which torch was built."""
    cudnn: str = ""
    driver: str = ""
    apart: tuple[tuple[int, int], ...] = ()
    """Pairs of GPUs of which the first cannot read the memory of the second."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def software(self) -> dict[str, str]:
        """Software versions for the manifest; empty without a GPU."""
        if not self.names:
            return {}
        return {"cuda": self.cuda, "cudnn": self.cudnn, "nvidia_driver": self.driver}

    def name_of(self, device: str) -> str:
        """Return the hardware name of a device for caches of measurements; ``cpu`` is unchanged.

        ``cuda`` distributes stages over all GPUs, so its name combines the names of all models.
        """
        if device == "cpu":
            return device
        if device == "cuda":
            return ", ".join(sorted(set(self.names)))
        return self.names[int(device.partition(":")[2])]


NO_GPUS = Gpus()


@cache
def find_gpus() -> Gpus:
    """Find GPUs without starting CUDA in this process. The query runs only once."""
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return NO_GPUS
    command = [sys.executable, "-W", "ignore", "-c", _ASK]
    try:
        asked = subprocess.run(command, capture_output=True, timeout=_ASK_SECONDS, check=True)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"looking for GPUs took longer than {_ASK_SECONDS:g} s; see that nvidia-smi answers, "
            f"or choose --device cpu"
        ) from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise ConfigError(
            f"looking for GPUs failed ({last:.200}); see that nvidia-smi answers, or choose "
            f"--device cpu"
        ) from None
    return _read(asked.stdout)


def _read(answer: bytes) -> Gpus:
    listed: list[tuple[str, int]]
    versions: list[Any]
    apart: list[tuple[int, int]]
    listed, versions, apart = msgpack.unpackb(answer)
    names = tuple(name for name, _ in listed)
    memory_bytes = tuple(total for _, total in listed)
    pairs = tuple((one, other) for one, other in apart)
    return Gpus(names, memory_bytes, versions[0], versions[1], driver_version(), pairs)


def driver_version(path: Path = _DRIVER) -> str:
    """Return the version of the NVIDIA driver; ``unknown`` if the kernel does not report it."""
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return "unknown"
    match = re.search(r"\b([0-9]{3,4}(?:\.[0-9]+){1,2})\b", text)
    return match[1] if match else "unknown"

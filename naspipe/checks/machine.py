"""Check devices, the data paths between them, and the limits of the process."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path

import torch

from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.machine.gpus import Gpus


def check_device(device: str, count: int) -> None:
    """Check that ``device`` is ``cpu``, or ``cuda`` or ``cuda:N`` among ``count`` GPUs."""
    index = int(device.partition(":")[2] or 0)
    if device != "cpu" and index >= count:
        here = f"cuda:0 to cuda:{count - 1}" if count else "no CUDA device"
        raise ConfigError(f"device {device}: found {here} on this machine; choose --device cpu")


def check_shared_gpus(device: str, budgets: Sequence[int], memory_bytes: Sequence[int]) -> None:
    """Check that a GPU has enough memory for the layers of all stages that share it.

    Args:
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        budgets: memory budget of each stage in bytes; empty if layers stay on their device.
        memory_bytes: memory of each GPU of this machine.
    """
    if device == "cpu":
        return
    together: dict[int, list[int]] = {}
    for stage in range(len(budgets)):
        _, _, index = device.partition(":")
        together.setdefault(int(index or stage % len(memory_bytes)), []).append(stage)
    for gpu, stages in together.items():
        total = sum(budgets[stage] for stage in stages)
        if total > memory_bytes[gpu]:
            raise ConfigError(
                f"device cuda:{gpu}: expected budgets of at most its {memory_bytes[gpu]} bytes for "
                f"the stages {', '.join(map(str, stages))} together, found {total}; choose a "
                f"--memory-budget of at most {memory_bytes[gpu] // len(stages)}, or fewer --stages"
            )


def check_data_path(execution: Execution, gpus: Gpus) -> None:
    """Check that the data path between stages exists; between GPUs, each stage needs its own."""
    path, workers, count = execution.wire.data_path, execution.workers, len(gpus)
    if path in ("shm", "zmq"):
        return
    if execution.hardware.device != "cuda":
        raise ConfigError(
            f"data_path={path}: expected --device cuda, found {execution.hardware.device}; "
            f"use it, or --set data_path=shm"
        )
    if workers > count:
        raise ConfigError(
            f"data_path={path}: expected a GPU for each of {workers} stages, found {count}; "
            f"choose --stages {count} or less, or --set data_path=shm"
        )
    if path == "cuda_ipc":
        if (transport := execution.wire.transport) != "ipc":
            raise ConfigError(
                f"data_path=cuda_ipc: expected --set transport=ipc, as the stages share memory of "
                f"one host, found {transport}; use it, or --set data_path=shm"
            )
        for one, other in gpus.apart:
            if max(one, other) < workers:
                raise ConfigError(
                    f"data_path=cuda_ipc: expected GPUs that read one another's memory, found that "
                    f"cuda:{one} cannot read that of cuda:{other}; use --set data_path=shm"
                )
    elif not torch.distributed.is_nccl_available():
        raise ConfigError(
            "data_path=nccl: expected a torch that was built with NCCL, found one without; "
            "use --set data_path=shm"
        )


_FILES, _FILES_OF_STAGE, _FILES_OF_STREAM = 40, 6, 6
_ROOM_BYTES = 512 << 20
_RAISED = 1024
"""A lower limit of open files is raised to this common default."""


def check_limits(execution: Execution, streams: int) -> None:
    """Check that the limits allow the file descriptors and the address space that a run needs.

    The soft limit of open files is raised if the system allows it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES + _FILES_OF_STAGE * execution.workers + _FILES_OF_STREAM * streams
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise ConfigError(
                f"open files: expected a limit of {needed} or more for {execution.workers} stages, "
                f"found {hard}; raise it, as with ulimit -n 1024"
            )
        most = max(needed, _RAISED)
        raised = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    found = _mapped_bytes()
    if limit < found + _ROOM_BYTES:
        raise ConfigError(
            f"address space: expected a limit of {(found + _ROOM_BYTES) >> 10:,} KiB or more "
            f"({found >> 10:,} KiB are mapped before anything is trained), found {limit >> 10:,} "
            f"KiB; raise it, as with ulimit -v unlimited"
        )


def _mapped_bytes() -> int:
    """Return the address space of this process in bytes; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 0

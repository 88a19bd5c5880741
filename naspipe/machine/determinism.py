"""Keyed randomness, and the settings under which torch computes the same bits."""

from __future__ import annotations

import hashlib
import os
import platform
import random
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import deterministic as torch_deterministic

from naspipe.machine.gpus import NO_GPUS, Gpus

_PACKAGES = ("naspipe", "torch", "numpy", "pyzmq", "msgpack", "safetensors")

_KERNELS = (
    "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE",
)  # fmt: skip
"""Variables that select other kernels than the processor's, with other bits."""


def describe_environment(device: str = "cpu", gpus: Gpus = NO_GPUS) -> dict[str, Any]:
    """Versions of the packages, and the hardware; ``gpus`` are used unless the device is the
    CPU.
    """
    kernels = {name: os.environ[name] for name in _KERNELS if os.environ.get(name)}
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
            **({"kernels": kernels} if kernels else {}),
            **({"gpu": gpus.name_of(device)} if device != "cpu" else {}),
        },
    }


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


def seed_all(key: int) -> None:
    """Seed the global generators of torch (CPU), numpy and Python."""
    torch.default_generator.manual_seed(key)
    np.random.seed(key % (1 << 32))
    random.seed(key)


@contextmanager
def kept_draws() -> Iterator[None]:
    """Restore the global generators afterwards."""
    before = _states()
    try:
        yield
    finally:
        _set_states(before)


class Randomness:
    """Global generators of a strategy, which may seed or use all of them.

    The run uses the same generators in the same process, so each must be isolated from the other.
    """

    def __init__(self, seed: int) -> None:
        self._states: Any = None
        self._seed = seed

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Activate the strategy's generators, and one thread for its arithmetic."""
        with kept_draws(), one_thread():
            if self._states is None:
                seed_all(self._seed)
            else:
                _set_states(self._states)
            try:
                yield
            finally:
                self._states = _states()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: the order of additions depends on the number of threads."""
    threads = torch.get_num_threads()
    if threads != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads != 1:
            torch.set_num_threads(threads)


def _states() -> tuple[Any, Any, Any]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_states(states: tuple[Any, Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


CUBLAS_WORKSPACE = ":4096:8"
"""With this workspace, the same in every run, cuBLAS computes the same bits in every call."""


def block_seed(
    seed: int, step: int, block: int, pass_number: int = 0, is_teacher: bool = False
) -> int:
    """The seed of the random draws of one block in one pass; a documented rule.

    ``block`` counts the blocks of the chain, including shared layers; ``pass_number`` is the pass
    within the step, negative for a probe. Teachers have seeds of their own.
    """
    role = "/teacher" if is_teacher else ""
    return _hash(f"{seed}/{step}/{block}/{pass_number}{role}")


def backward_seed(forward_seed: int) -> int:
    """The seed of draws in a block's backward, from that of its forward; a documented rule."""
    return _hash(f"{forward_seed}/backward")


def layer_seed(seed: int, block: int, candidate: int) -> int:
    """The seed under which a layer's parameters are initialised, whenever that happens."""
    return _hash(f"{seed}/layer/{block}/{candidate}")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seed_draws(seed: int) -> None:
    """Seed the global generators of torch, numpy and Python; GPUs only once CUDA runs.

    ``torch.manual_seed`` would also record seeds for a CUDA that never starts.
    """
    seed_all(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


@contextmanager
def _no_autocast() -> Iterator[None]:
    """Disable the caller's autocast: a run's precision comes from its recipe."""
    found = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    for kind in found:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        for kind in found:
            torch.set_autocast_enabled(kind, True)


@contextmanager
def deterministic_torch(threads: int) -> Iterator[None]:
    """Deterministic kernels, no TF32, no autotuning, a fixed number of threads; restored after.

    An operation without a deterministic kernel then raises an error that names it. Enter this
    before CUDA starts in the process: cuBLAS reads its workspace setting only once.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = CUBLAS_WORKSPACE
    flags = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch_deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.get_num_threads(),
    )
    with _no_tf32():
        torch.use_deterministic_algorithms(True)
        torch_deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.set_num_threads(threads)
        try:
            with kept_draws(), _no_autocast():
                yield
        finally:
            torch.use_deterministic_algorithms(flags[0], warn_only=flags[1])
            torch_deterministic.fill_uninitialized_memory = flags[2]  # type: ignore[attr-defined]
            torch.backends.cudnn.benchmark = flags[3]
            torch.backends.cudnn.deterministic = flags[4]
            torch.set_num_threads(flags[5])


_PRECISIONS: tuple[Any, ...] = (
    torch.backends.cuda.matmul,
    torch.backends.cudnn.conv,  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn,
)  # fmt: skip
_SWITCHES: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
"""An older interface for the same; torch raises on reading if the two differ."""


@contextmanager
def _no_tf32() -> Iterator[None]:
    """Compute float32 as float32; restored after, except for switches that raised when read."""
    precisions = [each.fp32_precision for each in _PRECISIONS]
    switches = [_switch(each) for each in _SWITCHES]
    for switch in _SWITCHES:
        switch.allow_tf32 = False
    for each in _PRECISIONS:  # after the switches, because that of cuDNN leaves these unchanged
        each.fp32_precision = "ieee"
    try:
        yield
    finally:
        for switch, was in zip(_SWITCHES, switches, strict=True):
            if was is not None:
                switch.allow_tf32 = was
        for each, precision in zip(_PRECISIONS, precisions, strict=True):
            each.fp32_precision = precision


def _switch(backend: Any) -> bool | None:
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:
        return None

"""Keyed randomness, and the settings with which torch is bitwise reproducible."""

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
"""Environment variables that select different kernels, which give different bits."""


def describe_environment(device: str = "cpu", gpus: Gpus = NO_GPUS) -> dict[str, Any]:
    """Return package versions and hardware; ``gpus`` are listed unless the device is the CPU."""
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
    """Restore the state of the global generators on exit."""
    before = _states()
    try:
        yield
    finally:
        _set_states(before)


class Randomness:
    """The state of the global generators for a strategy, which may seed or use all of them.

    The run uses the same generators in the same process, so the two must be isolated.
    """

    def __init__(self, seed: int) -> None:
        self._states: Any = None
        self._seed = seed

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Activate the strategy's generators, and restrict its arithmetic to one thread."""
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
    """Compute on one thread, because the order of additions depends on the number of threads."""
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
"""Workspace of cuBLAS in every run, with which all calls are bitwise reproducible."""


def block_seed(
    seed: int, step: int, block: int, pass_number: int = 0, is_teacher: bool = False
) -> int:
    """Return the seed of the random draws of one block in one pass; a documented rule.

    ``block`` counts the blocks of the chain, including shared layers; ``pass_number`` is the pass
    within the step, negative for a probe. Teachers have separate seeds.
    """
    role = "/teacher" if is_teacher else ""
    return _hash(f"{seed}/{step}/{block}/{pass_number}{role}")


def backward_seed(forward_seed: int) -> int:
    """Return the seed of draws in a block's backward; a documented rule."""
    return _hash(f"{forward_seed}/backward")


def layer_seed(seed: int, block: int, candidate: int) -> int:
    """Return the seed for initialising a layer's parameters, independent of the time."""
    return _hash(f"{seed}/layer/{block}/{candidate}")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seed_draws(seed: int) -> None:
    """Seed the global generators of torch, numpy and Python, and of GPUs if CUDA has been started.

    ``torch.manual_seed`` would also record seeds if CUDA is never started.
    """
    seed_all(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


@contextmanager
def _no_autocast() -> Iterator[None]:
    """Disable the caller's autocast, because the recipe determines a run's precision."""
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
    """Use deterministic kernels and a fixed number of threads, without TF32 and autotuning.

    The settings are restored on exit. An operation without a deterministic kernel raises an error
    that names it. Enter this context before CUDA starts in the process, because cuBLAS reads its
    workspace setting only once.
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
"""The older interface to the same settings; reading raises an error if the two differ."""


@contextmanager
def _no_tf32() -> Iterator[None]:
    """Disable TF32. Settings are restored on exit, except switches that raised when read."""
    precisions = [each.fp32_precision for each in _PRECISIONS]
    switches = [_switch(each) for each in _SWITCHES]
    for switch in _SWITCHES:
        switch.allow_tf32 = False
    for each in _PRECISIONS:  # after the switches, because that of cuDNN does not change these
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

"""Keyed randomness, and the settings under which torch leaves the same bits."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import deterministic as torch_deterministic

from naspipe.data.keyed.global_draws import kept_draws, seed_all

CUBLAS_WORKSPACE = ":4096:8"
"""With which cuBLAS leaves the same bits in every call; the same size in every run."""


def block_seed(
    seed: int, step: int, block: int, pass_number: int = 0, is_teacher: bool = False
) -> int:
    """The seed of every random draw of one block in one pass; a public rule.

    ``block`` counts the blocks of the chain, shared layers included; ``step`` is the
    number of the step, and ``pass_number`` the pass's within it, below 0 for a probe. A teacher's
    are its own.
    """
    role = "/teacher" if is_teacher else ""
    return _hash(f"{seed}/{step}/{block}/{pass_number}{role}")


def backward_seed(forward_seed: int) -> int:
    """The seed of draws in a block's backward, from that of its forward; a public rule."""
    return _hash(f"{forward_seed}/backward")


def layer_seed(seed: int, block: int, candidate: int) -> int:
    """The seed under which one layer's parameters are made, whenever that happens."""
    return _hash(f"{seed}/layer/{block}/{candidate}")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seed_draws(seed: int) -> None:
    """Start the global generators at a seed: torch's, numpy's and Python's; GPUs' once CUDA runs.

    What ``torch.manual_seed`` does, but without noting seeds for a CUDA that never starts.
    """
    seed_all(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


@contextmanager
def _no_autocast() -> Iterator[None]:
    """A run's precision is its recipe's, and not that of whoever calls it."""
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

    An operation without a deterministic kernel then raises an error that names it. To be
    entered before CUDA starts in the process: cuBLAS reads its workspace setting only once.
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
    precisions = _no_tf32()
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
        _restore_tf32(precisions)


_PRECISIONS: tuple[Any, ...] = (
    torch.backends.cuda.matmul,
    torch.backends.cudnn.conv,  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn,
)  # fmt: skip
_SWITCHES: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
"""An older way to say the same, and torch keeps both; where they differ, reading it raises."""


def _no_tf32() -> tuple[list[str], list[bool | None]]:
    """Compute float32 as float32; returns what was there. None is a switch that raised."""
    found = [each.fp32_precision for each in _PRECISIONS], [_switch(each) for each in _SWITCHES]
    for switch in _SWITCHES:
        switch.allow_tf32 = False
    for each in _PRECISIONS:  # behind the switches: that of cuDNN leaves these as they are
        each.fp32_precision = "ieee"
    return found


def _restore_tf32(found: tuple[list[str], list[bool | None]]) -> None:
    precisions, switches = found
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

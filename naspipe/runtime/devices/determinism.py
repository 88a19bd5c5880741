"""Keyed randomness, and the settings under which torch leaves the same bits."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils import deterministic as torch_deterministic

CUBLAS_WORKSPACE = ":4096:8"
"""With which cuBLAS leaves the same bits in every call; the same size in every run."""


def block_seed(
    seed: int, step: int, block: int, pass_number: int = 0, is_teacher: bool = False
) -> int:
    """The seed of every random draw of one block in one pass; a public rule.

    ``block`` counts the blocks of the chain, shared layers included; ``step`` is the
    number of the step, and ``pass_number`` the pass's within it. A teacher's are its own.
    """
    role = "/teacher" if is_teacher else ""
    return _hash(f"{seed}/{step}/{block}/{pass_number}{role}")


def layer_seed(seed: int, block: int, candidate: int) -> int:
    """The seed under which one layer's parameters are made, whenever that happens."""
    return _hash(f"{seed}/layer/{block}/{candidate}")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seed_draws(seed: int) -> None:
    """Start torch's default generators at a seed: the CPU's, and the GPUs' once CUDA has started.

    What ``torch.manual_seed`` does, but without noting seeds for a CUDA that never starts.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


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
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
        torch.get_num_threads(),
    )
    draws = torch.get_rng_state()
    torch.use_deterministic_algorithms(True)
    torch_deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(flags[0], warn_only=flags[1])
        torch_deterministic.fill_uninitialized_memory = flags[2]  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = flags[3]
        torch.backends.cudnn.deterministic = flags[4]
        torch.backends.cudnn.allow_tf32 = flags[5]
        torch.backends.cuda.matmul.allow_tf32 = flags[6]
        torch.set_num_threads(flags[7])
        torch.set_rng_state(draws)

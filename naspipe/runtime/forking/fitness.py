"""Whether what is forked from this process will be able to compute.

Where torch was built with an accelerator, two things in a process spoil every fork after them: a
call that starts the accelerator (an optimizer's step may make one), and a backward (for which
torch starts a thread for each accelerator, also when all tensors are in host memory). So there a
launcher computes nothing itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from naspipe.config.errors import ConfigError
from naspipe.runtime.forking.apart import done_apart

_BACKWARD = "Unable to handle autograd's threading"
"""What torch says of a backward in a process whose parent has computed one."""


def may_compute_here(device: str = "cpu") -> bool:
    """Whether computing in this process spoils no fork: torch was built without an accelerator.

    Args:
        device: where it would compute.
    """
    return device == "cpu" and torch.accelerator.current_accelerator() is None


def done_fit(work: Callable[[], dict[str, Any]], what: str) -> dict[str, Any]:
    """What the work returns; it is done in a process of its own where it would spoil this one.

    Args:
        work: computes; returns JSON.
        what: how messages call it.

    Raises:
        ConfigError: the work's own.
        StageFailedError, TransportError: see :func:`~naspipe.runtime.forking.apart.done_apart`.
    """
    return work() if may_compute_here() else done_apart(lambda _: work(), what)


def check_fit_for_forking(device: str = "cpu") -> None:
    """Look whether forked processes can compute.

    Args:
        device: where they will.

    Raises:
        ConfigError: when this process has started CUDA, or computed a backward beside an
            accelerator.
    """
    if device != "cpu" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ConfigError(
            "this process has used CUDA already, so stages cannot be forked from it; "
            "start training before the first CUDA call, or use the naspipe command"
        )
    if not may_compute_here():
        done_apart(_backward, "a backward in a process of its own")


def _backward(_: Callable[[], None]) -> dict[str, Any]:
    try:
        torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if _BACKWARD not in str(error):
            raise
        raise ConfigError(
            f"process {os.getppid()}, which was to fork stages, has computed a backward already, "
            f"and beside an accelerator torch then refuses every backward in what is forked from "
            f"it; start training before the first backward, or use the naspipe command"
        ) from None
    return {}

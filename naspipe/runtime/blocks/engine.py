"""Calls of autograd's engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.autograd.graph import GradientEdge

Gradient = torch.Tensor | None

Root = tuple[torch.Tensor | GradientEdge, torch.Tensor]
"""Where a backward begins, and the gradient that it begins with."""


def backward_from(
    roots: Sequence[Root], inputs: Iterable[torch.Tensor] = (), keeps_graph: bool = False
) -> None:
    """What ``torch.autograd.backward`` does of outputs and gradients that are known to fit.

    It compares their sizes one by one in Python, and the engine compares them again. On a small
    block that takes as long as a kernel. A subclass of tensors may have a backward of its own.

    Args:
        roots: at least one.
        inputs: leaves whose gradients are wanted; none for all leaves.
        keeps_graph: whether another backward of the same graph follows.
    """
    outputs, gradients = zip(*roots, strict=True)
    wanted = tuple(inputs)
    if _ENGINE is None or any(type(each) not in _PLAIN for each in outputs):
        torch.autograd.backward(outputs, gradients, retain_graph=keeps_graph, inputs=wanted or None)
    else:
        _ENGINE(
            outputs, gradients, keeps_graph, False, wanted,
            allow_unreachable=True, accumulate_grad=True,
        )  # fmt: skip


_PLAIN = (torch.Tensor, GradientEdge)

_ENGINE = getattr(torch.autograd.graph, "_engine_run_backward", None)
"""Torch's own, as ``torch.autograd`` calls it: makes no graph of the backward."""

"""What is fixed about one block of one pass before it is computed, and a thin backward call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge

from naspipe.config.blocks import LossBlock
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Rule
from naspipe.config.space import Space

Tensors = tuple[torch.Tensor, ...]


class SegmentSpec(NamedTuple):
    """What is fixed about one block of one pass.

    ``finish`` turns the module's outputs into the segment's own: the loss, in the last block.
    """

    label: str
    rule: Rule
    seed: int
    precision: str
    device_type: str = "cpu"
    defers_norms: bool = False
    """Batch statistics are applied at the step's end; see ``Segment.statistics``."""
    fields: Tensors = ()
    setting: Mapping[str, Any] = MappingProxyType({})
    """Keyword arguments of an elastic layer."""
    edit_obstacle: str = ""
    """The setting of the run that forbids a forward to change parameters; empty if none does."""
    finish: Callable[[Tensors], Tensors] | None = None
    computes_loss: bool = False
    """``finish`` computes the loss with the module of this layer."""


def spec_of(
    space: Space, recipe: Recipe, block: int, option: int, device_type: str = "cpu"
) -> SegmentSpec:
    """Return what all passes by an option of a block share: all but seed, fields and finish."""
    own = space.blocks[block]
    return SegmentSpec(
        label=space.option_label(block, option),
        rule=own.rule,
        seed=0,
        precision=recipe.precision,
        device_type=device_type,
        defers_norms=recipe.norms == "deferred",
        setting=own.setting(option),
        computes_loss=isinstance(own, LossBlock),
    )


Form = tuple[tuple[tuple[int, ...], torch.dtype], ...]
"""Shape and dtype of several tensors."""


def form_of(tensors: Sequence[torch.Tensor]) -> Form:
    return tuple((tuple(each.shape), each.dtype) for each in tensors)


def form_text(form: Form) -> str:
    """As in ``[16, 8, 8, 8]`` or ``[16, 8] and [16] int64``; float32 is left out."""
    texts = [
        str(list(shape)) + ("" if dtype is torch.float32 else str(dtype).replace("torch.", " "))
        for shape, dtype in form
    ]
    return " and ".join(texts) or "nothing"


Gradient = torch.Tensor | None

Root = tuple[torch.Tensor | GradientEdge, torch.Tensor]
"""Where a backward begins, and the gradient there."""


def backward_from(
    roots: Sequence[Root], inputs: Iterable[torch.Tensor] = (), keeps_graph: bool = False
) -> None:
    """Run ``torch.autograd.backward`` for outputs and gradients that are known to fit.

    Torch compares their sizes one by one in Python, and the engine compares them again. On a small
    block that takes as long as a kernel. A subclass of tensors may have a backward of its own.

    Args:
        roots: at least one.
        inputs: leaves whose gradients are wanted; empty for all leaves.
        keeps_graph: whether another backward of the same graph follows.
    """
    outputs, gradients = zip(*roots, strict=True)
    wanted = tuple(inputs)
    if _ENGINE is None or any(type(each) not in _PLAIN for each in outputs):
        torch.autograd.backward(outputs, gradients, retain_graph=keeps_graph, inputs=wanted or None)
    else:
        _ENGINE(
            outputs,
            gradients,
            keeps_graph,
            False,
            wanted,
            allow_unreachable=True,
            accumulate_grad=True,
        )


_PLAIN = (torch.Tensor, GradientEdge)

_ENGINE = getattr(torch.autograd.graph, "_engine_run_backward", None)
"""Torch's own engine, called as ``torch.autograd`` does: without a graph of the backward."""

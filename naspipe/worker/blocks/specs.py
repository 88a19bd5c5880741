"""The fixed properties of one block in one pass, and a call of backward with little overhead."""

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
    """The properties of one block in one pass that are known before it is computed.

    ``finish`` converts the module's outputs into those of the segment: the loss, in the last block.
    """

    label: str
    rule: Rule
    seed: int
    precision: str
    device_type: str = "cpu"
    defers_norms: bool = False
    """Whether batch statistics are applied at the end of the step; see ``Segment.statistics``."""
    fields: Tensors = ()
    setting: Mapping[str, Any] = MappingProxyType({})
    """Keyword arguments of an elastic layer."""
    edit_obstacle: str = ""
    """The setting that forbids changing parameters in a forward; empty if none does."""
    finish: Callable[[Tensors], Tensors] | None = None
    computes_loss: bool = False
    """Whether ``finish`` computes the loss with the module of this layer."""


def spec_of(
    space: Space, recipe: Recipe, block: int, option: int, device_type: str = "cpu"
) -> SegmentSpec:
    """Return the spec shared by all passes of an option: all but seed, fields and finish."""
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
"""Shapes and dtypes of several tensors."""


def form_of(tensors: Sequence[torch.Tensor]) -> Form:
    return tuple((tuple(each.shape), each.dtype) for each in tensors)


def form_text(form: Form) -> str:
    """Return text such as ``[16, 8, 8, 8]`` or ``[16, 8] and [16] int64``; float32 is omitted."""
    texts = [
        str(list(shape)) + ("" if dtype is torch.float32 else str(dtype).replace("torch.", " "))
        for shape, dtype in form
    ]
    return " and ".join(texts) or "nothing"


Gradient = torch.Tensor | None

Root = tuple[torch.Tensor | GradientEdge, torch.Tensor]
"""The tensor or edge where a backward begins, and its gradient."""


def backward_from(
    roots: Sequence[Root], inputs: Iterable[torch.Tensor] = (), keeps_graph: bool = False
) -> None:
    """Run ``torch.autograd.backward`` for outputs and gradients that are known to match.

    Torch compares their sizes one by one in Python, and the engine compares them again. For a small
    block this takes as long as a kernel. A tensor subclass may define its own backward.

    Args:
        roots: at least one root.
        inputs: leaves whose gradients are needed; empty for all leaves.
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
"""The engine of torch, called as in ``torch.autograd``, without a graph of the backward."""

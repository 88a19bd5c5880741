"""Gradients of weights by the kernels that autograd calls for them, without its engine.

A call of the engine for a single weight adds about 30 microseconds, as long as the kernel itself
takes in a small block. Nodes expose what they have saved, so the kernel can be called directly with
the same tensors.

A kernel is known only if nothing but a transposition lies between the node and the parameter, so
that its result is the gradient for any values. The first backward of a candidate also compares its
bits with those of the engine (:mod:`naspipe.worker.blocks.split_backward`). That alone would prove
little, because a gradient may be zero or a factor one in the first pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

Kernel = Callable[[Any, torch.Tensor], Sequence[torch.Tensor] | None]
"""Takes a node and the gradient that arrives there; returns the gradients of the parameters that it
leads to, in the order of its inputs, or None if only the engine can compute them."""

_PLAIN = (torch.Tensor, nn.Parameter)
_INPUT, _WEIGHT, _BIAS = range(3)


def kernel_of(join: Node, leaves: Sequence[Node]) -> Kernel | None:
    """Return the kernel of the gradients of parameters with these leaves, if it is known.

    They join the way from outputs to inputs at the node ``join``.
    """
    behind = [node for node, _ in join.next_functions]
    if join.name() == "ConvolutionBackward0":
        if behind[_WEIGHT] not in leaves or not {*leaves} <= {*behind[_WEIGHT:]}:
            return None
        return partial(_convolution, has_bias=behind[_BIAS] in leaves)
    if join.name() not in ("AddmmBackward0", "MmBackward0") or len(leaves) != 1:
        return None
    (leaf,), last = leaves, behind[-1]
    if last is leaf:
        return _right_factor
    if last is None or last.name() != "TBackward0":
        return None
    return _transposed_factor if last.next_functions[0][0] is leaf else None


def in_order_of_inputs(join: Node, leaves: Sequence[Node]) -> list[Node]:
    behind = [node for node, _ in join.next_functions]
    return sorted(leaves, key=lambda leaf: behind.index(leaf) if leaf in behind else 0)


def _right_factor(node: Any, gradient: torch.Tensor) -> Sequence[torch.Tensor] | None:
    left = _left_factor(node)
    return (left.t().mm(gradient),) if _are_plain(left, gradient) else None


def _transposed_factor(node: Any, gradient: torch.Tensor) -> Sequence[torch.Tensor] | None:
    left = _left_factor(node)
    return (gradient.t().mm(left),) if _are_plain(left, gradient) else None


def _left_factor(node: Any) -> Any:
    """Return the left matrix of a product; None if the product is multiplied by a number."""
    if getattr(node, "_saved_alpha", 1) != 1:
        return None
    name = "_saved_self" if node.name() == "MmBackward0" else "_saved_mat1"
    return getattr(node, name, None)


def _convolution(
    node: Any, gradient: torch.Tensor, has_bias: bool
) -> Sequence[torch.Tensor] | None:
    inputs, weight = node._saved_input, node._saved_weight
    if not _are_plain(inputs, weight, gradient):
        return None
    found = torch.ops.aten.convolution_backward.default(
        gradient, inputs, weight, node._saved_bias_sym_sizes_opt, node._saved_stride,
        node._saved_padding, node._saved_dilation, node._saved_transposed,
        node._saved_output_padding, node._saved_groups, (False, True, has_bias),
    )  # fmt: skip
    own: Sequence[torch.Tensor] = found[_WEIGHT : _BIAS + has_bias]
    return own


def _are_plain(*tensors: Any) -> bool:
    """Whether these are dense real tensors and not of a subclass.

    Operations of a subclass may do something else, and gradients of complex numbers are conjugated.
    """
    return all(
        type(each) in _PLAIN and each.layout is torch.strided and not each.is_complex()
        for each in tensors
    )

"""Gradients that would reach a tensor which no layer of the run steps.

Each block is a segment of autograd of its own, and ``npp.chain`` trains copies of modules. So a
term of the loss that reads parameters through a variable, a global or an attribute computes with
tensors that nothing trains: its value never changes and its gradient goes nowhere. In a plain loop
over the originals it would have been part of the training.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.runtime.layers.held_tensors import held_tensors, leaves_of


class OutsideGradientError(ConfigError):
    """A layer or the loss has a gradient for a tensor that belongs to no layer."""


def check_loss_leaves(
    name: str, loss: object, found: Iterable[torch.Tensor], inside: Iterable[torch.Tensor]
) -> None:
    """A loss may have gradients for its outputs and fields, and its own parameters as a layer.

    Args:
        name: how messages call the loss.
        loss: the user's, which is searched for what holds a tensor.
        found: what it returned.
        inside: the outputs and fields that it was called with, or leaves that these come from, and
            the parameters of a loss that is a layer.

    Raises:
        OutsideGradientError: naming what holds the first other tensor.
    """
    if outside := _outside(found, inside):
        held, where = _named(outside, loss, "loss")
        if held is not None:
            raise OutsideGradientError(
                f"loss {name}: expected a gradient for the outputs alone, found one for {where}, "
                f"which is outside the layers that a run trains (npp.chain trains copies of its "
                f"modules); compute this term in the layer that has the tensor and return it "
                f"beside the output, make the loss an nn.Module that registers the tensor if it "
                f"belongs to the loss, or freeze it by requires_grad_(False) if it is constant"
            )


def check_layer_leaves(
    name: str, module: nn.Module, found: Iterable[torch.Tensor], inside: Iterable[torch.Tensor]
) -> None:
    """A layer may have gradients for its inputs, fields and own parameters alone.

    Args:
        name: how messages call the layer.
        module: the layer, which is searched for what holds a tensor.
        found: what it returned.
        inside: inputs, fields, parameters and buffers.

    Raises:
        OutsideGradientError: naming what holds the first other tensor.
    """
    if outside := _outside(found, (*inside, *module.parameters(), *module.buffers())):
        held, where = _named(outside, module, type(module).__name__)
        if held is not None:
            raise OutsideGradientError(
                f"{name}: expected gradients for its inputs and its own parameters alone, found "
                f"one for {where}, which the run does not train; register it as a parameter of "
                f"the layer (nn.Parameter, nn.ParameterList), let the layer that has it return "
                f"it, or freeze it by requires_grad_(False) if it is constant"
            )


def _outside(
    found: Iterable[torch.Tensor], inside: Iterable[torch.Tensor]
) -> dict[int, torch.Tensor]:
    known = {id(each) for each in inside}
    return {id(leaf): leaf for leaf in leaves_of(found) if id(leaf) not in known}


def _named(
    outside: dict[int, torch.Tensor], root: object, name: str
) -> tuple[torch.Tensor | None, str]:
    """The first tensor that was there before the call, and what holds it.

    A leaf that is neither held by anything nor a parameter was made during the call, as for a
    gradient penalty: it ends with the graph.
    """
    for path, tensor in held_tensors(root, name):
        if id(tensor) in outside:
            return tensor, f"{path} (shape {list(tensor.shape)})"
    for leaf in outside.values():
        if isinstance(leaf, nn.Parameter):
            return leaf, f"a parameter of another module (shape {list(leaf.shape)})"
    return None, ""

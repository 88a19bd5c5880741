"""Comparison of a module in NNI's own model of an architecture with its counterpart in a layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from naspipe.nni.library import is_open, library


def fixed_class(module: nn.Module) -> type:
    """Return the class that NNI's own models use in place of this module of the space."""
    if isinstance(module, library().repeat):
        return nn.Sequential
    bound = getattr(module, "_bound_type", None)
    return bound if isinstance(bound, type) else type(module)


def is_of(ours: nn.Module, theirs: nn.Module) -> bool:
    """Return True if a module of NNI's model has the class that corresponds to a module of ours.

    Classes are compared by name, because a class defined inside a constructor differs every time.
    """
    one, other = fixed_class(ours), type(theirs)
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def is_identity(module: nn.Module) -> bool:
    """Return True if a module returns its input unchanged."""
    return type(module).forward is nn.Identity.forward


def is_sequence(module: nn.Module) -> bool:
    """Return True if calling a module only calls its children in turn."""
    if isinstance(module, library().repeat):
        return not isinstance(module.depth_choice, library().mutable)
    return type(module).forward is nn.Sequential.forward


def parts_of(module: nn.Module) -> dict[str, nn.Module]:
    """Return a module's children by their names in NNI's own models."""
    owner: nn.Module = module.blocks if isinstance(module, library().repeat) else module
    return {name: part for name, part in owner._modules.items() if part is not None}


def difference(ours: nn.Module, theirs: nn.Module) -> str:
    """Return how a module of a layer differs from one of NNI's own model; empty if it does not.

    Classes, settings, and the names, shapes and kinds of all tensors inside are compared, but not
    their values.
    """
    if difference := _own_difference(ours, theirs):
        return difference
    one, other = parts_of(ours), parts_of(theirs)
    if list(one) != list(other):
        return f"{named(theirs)} of {_listed(other)}, not of {_listed(one)}"
    for name in one:
        if difference := class_difference(one[name], other[name]):
            return f"{name}: {difference}"
    return ""


def class_difference(ours: nn.Module, theirs: nn.Module) -> str:
    """Like :func:`difference`, but compare modules constructed from label values only by class."""
    if not is_open(ours):
        return difference(ours, theirs)
    if not is_of(ours, theirs):
        return named(theirs)
    if type(theirs) is not nn.Sequential:
        return ""
    for one, other in zip_longest(parts_of(ours).values(), parts_of(theirs).values()):
        if one is None or other is None or class_difference(one, other):
            return f"{named(theirs)} of {_listed(parts_of(theirs))}"
    return ""


def _own_difference(ours: nn.Module, theirs: nn.Module) -> str:
    if not is_of(ours, theirs):
        return named(theirs)
    forward = type(ours).forward
    if type(theirs).__module__.startswith("torch.nn"):
        if not isinstance(ours, library().repeat) and forward is not type(theirs).forward:
            return f"{named(theirs)} with a forward of torch's"
        # Some of NNI's own classes print their arguments in another form.
        one, other = (type(theirs).extra_repr(each) for each in (ours, theirs))
        if one != other:
            return f"{named(theirs)}({other}), not ({one})"
    forms = (
        [(name, form_of(tensor)) for name, tensor in _own_tensors(module).items()]
        for module in (ours, theirs)
    )
    for one_tensor, other_tensor in zip_longest(*forms):
        if one_tensor != other_tensor:
            return f"{named(theirs)} with {_tensor(other_tensor)}, not {_tensor(one_tensor)}"
    return ""


def _own_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of the module itself, without its children's."""
    listed = (*module._parameters.items(), *module._buffers.items())
    return {name: tensor for name, tensor in listed if tensor is not None}


def form_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return everything about a tensor except its values."""
    kind = "parameter" if isinstance(tensor, nn.Parameter) else "tensor"
    return (kind, list(tensor.shape), str(tensor.dtype), tensor.requires_grad)


def _tensor(item: tuple[str, tuple[Any, ...]] | None) -> str:
    if item is None:
        return "no further tensor"
    name, (kind, shape, dtype, has_gradient) = item
    return f"{kind} {name} {shape} {dtype}{' with a gradient' if has_gradient else ''}"


def named(module: nn.Module) -> str:
    return type(module).__name__


def _listed(parts: Mapping[str, nn.Module]) -> str:
    return ", ".join(f"{name} {named(part)}" for name, part in parts.items()) or "nothing"


def tensor_pairs(
    ours: nn.Module, theirs: nn.Module
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield name and both tensors for every tensor of two modules that do not differ."""
    others = _own_tensors(theirs)
    for name, tensor in _own_tensors(ours).items():
        yield name, tensor, others[name]
    one, other = parts_of(ours), parts_of(theirs)
    for name, part in one.items():
        for inner, *pair in tensor_pairs(part, other[name]):
            yield f"{name}.{inner}", pair[0], pair[1]

"""What decides over the parameter groups of a layer's parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from naspipe.config.recipe import NamedParameter, ParameterGroup, group_of
from naspipe.mixed.alphas import Alpha

GroupOf = Callable[[nn.Parameter], int]
"""The number of a parameter's group; 0 for the rest."""


def no_groups(parameter: nn.Parameter) -> int:
    """All parameters are stepped alike."""
    return 0


def grouping(label: str, module: nn.Module, groups: Sequence[ParameterGroup]) -> GroupOf:
    """Which group each parameter of a layer is in.

    Args:
        label: of the layer, as in ``3.1`` or ``head``.
        module: of the layer.
        groups: of the recipe.
    """
    if not groups:
        return no_groups
    named = named_parameters(label, module)
    numbers = {key: group_of(each, groups) for key, each in named.items()}
    return lambda parameter: numbers[id(parameter)]


def named_parameters(label: str, module: nn.Module) -> dict[int, NamedParameter]:
    """By identity, the parameters of a layer but for those of architectures.

    One that occurs twice goes by the first of its names.
    """
    found: dict[int, NamedParameter] = {}
    for prefix, owner in module.named_modules():
        for key, parameter in owner._parameters.items():
            if parameter is not None and not isinstance(parameter, Alpha):
                name = ".".join(part for part in (label, prefix, key) if part)
                described = NamedParameter(name, parameter.dim(), type(owner).__name__)
                found.setdefault(id(parameter), described)
    return found

"""Elastic modules one behind the other, beside a skip, or left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from naspipe.elastic.slices import named


def _taken(modules: Iterable[nn.Module]) -> tuple[str, ...]:
    return named(*(name for each in modules for name in getattr(each, "takes", ())))


def _cut(module: nn.Module, settings: dict[str, Any]) -> nn.Module:
    cut: nn.Module = module.cut(**settings) if hasattr(module, "takes") else module  # type: ignore[operator]
    return cut


class Sequential(nn.Sequential):
    """Modules one behind the other, elastic or plain; settings go to those that take them."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__(*modules)
        self.takes = _taken(modules)

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Through all of them."""
        for module in self:
            own = settings if hasattr(module, "takes") else {}
            input = module(input, **own)
        return input

    def cut(self, **settings: Any) -> nn.Sequential:
        """The plain modules of one setting."""
        return nn.Sequential(*(_cut(module, settings) for module in self))


class Residual(Sequential):
    """The same, added to the input."""

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        """The input and what they make of it."""
        return input + super().forward(input, **settings)

    def cut(self, **settings: Any) -> nn.Sequential:
        """One of fixed sizes."""
        return Residual(*(_cut(module, settings) for module in self))


class Depth(nn.Module):
    """A module that is left out where the network is not as deep.

    Args:
        module: elastic or plain.
        place: how many such modules come before it: the first has 0.
        depth: the setting that is how many of them are used.
    """

    def __init__(self, module: nn.Module, place: int, depth: str = "depth") -> None:
        super().__init__()
        self.module, self.place, self.depth = module, place, depth
        self.takes = named(depth, *_taken([module]))

    def forward(self, input: torch.Tensor, **settings: Any) -> torch.Tensor:
        """The input as it is, where it is left out."""
        if settings[self.depth] <= self.place:
            return input
        found: torch.Tensor = self.module(
            input, **(settings if hasattr(self.module, "takes") else {})
        )
        return found

    def cut(self, **settings: Any) -> nn.Module:
        """The plain module of one setting, or none."""
        if settings[self.depth] <= self.place:
            return nn.Identity()
        return _cut(self.module, settings)

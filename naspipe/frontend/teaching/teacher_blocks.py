"""A teacher's chain in several blocks, each to teach one student."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from naspipe.core.errors import ConfigError
from naspipe.core.space import Space


class InTurn(nn.Module):
    """Modules one after the other, each called with what the one before returns.

    Unlike ``torch.nn.Sequential`` it hands on several tensors: what a tuple holds.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """What the last module returns."""
        state: Any = inputs
        for part in self.parts:
            state = part(*state) if isinstance(state, tuple) else part(state)
        return state


def teacher_blocks(space: Space, cuts: Sequence[int]) -> list[nn.Module]:
    """The modules of a space with one subnet, joined from each cut to the next one.

    Args:
        space: of a teacher.
        cuts: positions of its chain at which its second block begins, its third one, and so on.

    Raises:
        ConfigError: for cuts that the chain does not have, or for a teacher that takes more of a
            batch than its first block's ``input``.
    """
    parts = Space("teacher", space.blocks).cut(cuts)
    for position in range(len(space)):
        fields = space.fields(position)
        if fields != (("input",) if not position else ()):
            raise ConfigError(
                f"teacher: expected only its first layer to take a batch field, "
                f"input, found {', '.join(fields) or 'none'} at layer {position}"
            )
    return [InTurn([block.candidates[0]() for block in part.blocks]) for part in parts]

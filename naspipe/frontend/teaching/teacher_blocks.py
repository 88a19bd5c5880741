"""A teacher's chain in several blocks, each to teach one student, and what they must not do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.config.user_code import users_code
from naspipe.data.keyed.global_draws import kept_draws
from naspipe.runtime.devices.tensor_bytes import tensor_bytes


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


@torch.no_grad()
def check_teaching(blocks: Sequence[nn.Module], inputs: torch.Tensor) -> None:
    """A teacher's block must leave what it is called with, and itself, as they are.

    Others are called with the same tensors, and every forward has to make the same of a batch.

    Args:
        blocks: in evaluation mode, in their order.
        inputs: of the first one.

    Raises:
        ConfigError: naming the block that does not.
    """
    state: tuple[torch.Tensor, ...] = (inputs,)
    for number, block in enumerate(blocks):
        given = tuple(each.clone() for each in state)
        before = {name: each.clone() for name, each in _kept(block)}
        what = f"blockwise: expected block {number} of the teacher to take"
        what += " the output of the block before it, found" if number else " a batch, found"
        with users_code(what), kept_draws():
            result = block(*given)
        for found, original in zip(given, state, strict=True):
            if not torch.equal(_bytes(found), _bytes(original)):
                raise ConfigError(
                    f"blockwise: expected block {number} of the teacher to leave its input as it "
                    f"is, as a student is called with it, too, found it changed in place; use the "
                    f"out-of-place operation (for example inplace=False)"
                )
        for name, after in _kept(block):
            if name not in before or not torch.equal(_bytes(after), _bytes(before[name])):
                raise ConfigError(
                    f"blockwise: expected block {number} of the teacher to stay as it is in "
                    f"evaluation mode, found that a forward changes {name}; leave that out"
                )
        state = result if isinstance(result, tuple) else (result,)


def _kept(block: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*block.named_parameters(), *block.named_buffers()]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """So that a number that is none is equal to itself."""
    return tensor_bytes(tensor.detach().cpu())

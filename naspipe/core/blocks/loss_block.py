"""The block at the end of a chain that holds the parameters and buffers of the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from naspipe.core.blocks.block import Shared

LOSS = "loss"
"""Its label."""


@dataclass(frozen=True, slots=True)
class LossBlock(Shared):
    """The last block of a run whose loss is a module with parameters or buffers of its own.

    Its layer is the loss module, which the optimizer steps, checkpoints hold and stages hand over
    as they do any layer. As a block it returns the tensors that it is given. The loss is computed
    from these with the module of the layer, as part of the same block.

    Args:
        before: the chain without this block.
    """

    before: Any = None

    @property
    def apply(self) -> Callable[..., Any] | None:
        """Return the tensors unchanged."""
        return _unchanged

    def set_mode(self, module: Any, trains: bool) -> None:
        """Leave every part of the loss in the mode in which the user has put it."""


def _unchanged(module: Any, *tensors: Any) -> tuple[Any, ...]:
    return tensors

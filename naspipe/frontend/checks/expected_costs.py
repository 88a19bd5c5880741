"""A loss with a cost term, and a student that says what its paths cost, belong together."""

from __future__ import annotations

from typing import Any

from naspipe.config.blocks import LossBlock
from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.mixed.mixed_edge import MixedEdge
from naspipe.runtime.sketching.layer_sizes import sketch


def check_costs(space: Space, loss: Any) -> None:
    """A student must hand on what its paths cost if its loss asks for it, and only then.

    Raises:
        ConfigError: when only one of them is so.
    """
    last = len(space) - 1 - isinstance(space.blocks[-1], LossBlock)
    module = sketch(space, last, 0)
    says = isinstance(module, MixedEdge) and module.reference is not None
    if getattr(loss, "needs_cost", False) and not says:
        raise ConfigError(
            f"student {space.name}: expected a table of operations and a reference for a loss with "
            f"a cost term, found none; use naspipe.mixed.student(..., operations=TABLE, "
            f"reference=NUMBER)"
        )
    if says and not getattr(loss, "needs_cost", False):
        raise ConfigError(
            f"student {space.name}: expected a loss with a cost term for a student with a table of "
            f"operations, found {type(loss).__name__}; use naspipe.losses.CostTerm"
        )

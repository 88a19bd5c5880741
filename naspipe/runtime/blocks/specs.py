"""What is fixed about one block of one pass, before it is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from naspipe.config.blocks import LossBlock
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Rule
from naspipe.config.space import Space

Tensors = tuple[torch.Tensor, ...]


class SegmentSpec(NamedTuple):
    """What is fixed about one block of one pass.

    ``finish`` turns the module's outputs into the segment's own: the loss, in the last block.
    """

    label: str
    rule: Rule
    seed: int
    precision: str
    device_type: str = "cpu"
    defers_norms: bool = False
    """Batch statistics are left to the step's end; see ``Segment.statistics``."""
    fields: Tensors = ()
    setting: Mapping[str, Any] = MappingProxyType({})
    """What an elastic layer is called with, beside tensors."""
    edit_obstacle: str = ""
    """What of the run does not carry parameters that a forward changes."""
    finish: Callable[[Tensors], Tensors] | None = None
    computes_loss: bool = False
    """``finish`` computes the loss with the module of this layer."""


def spec_of(
    space: Space, recipe: Recipe, block: int, option: int, device_type: str = "cpu"
) -> SegmentSpec:
    """What all passes by an option of a block have in common; without seed, fields and finish.

    Args:
        space: with the block.
        recipe: of the run.
        block: its position in the chain.
        option: of the block.
        device_type: where it is computed, as in ``torch.device(...).type``.
    """
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

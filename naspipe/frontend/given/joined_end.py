"""The blocks behind the network of a run, in which its loss is computed."""

from __future__ import annotations

from torch import nn

from naspipe.config.blocks import LossBlock
from naspipe.config.space import Shared, Space

END = "joined"
"""Label of the block in which the outputs of all passes of a step meet. It changes nothing."""


def joined_end() -> Shared:
    """A new one."""
    return Shared(END, nn.Identity)


def network_length(space: Space) -> int:
    """Number of blocks of the network, without a block for the loss at the end of the chain."""
    is_end = space.labels[-1] == END or isinstance(space.blocks[-1], LossBlock)
    return len(space) - is_end

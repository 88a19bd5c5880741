"""A subnet: one option per block of the chain, at its place in a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from naspipe.core.ids import LayerId, SequenceId, StreamId


class Subnet(NamedTuple):
    """What one pass trains; ``chain`` holds one option per block, shared layers included.

    It is empty of a pass that nobody needs: it has a number, and nothing to do.
    """

    stream: StreamId
    sequence_id: SequenceId
    chain: tuple[int, ...]
    candidates: tuple[int, ...] = ()
    """Of each block the candidate that the option uses, where several use one; empty where every
    option is a candidate of its own."""

    def layer(self, block: int) -> LayerId:
        """The layer this subnet uses in a block."""
        return LayerId(self.stream, block, (self.candidates or self.chain)[block])

    def options(self, layers: Iterable[LayerId]) -> tuple[int, ...]:
        """The options by which it uses these layers; empty where the layers say it."""
        return tuple(self.chain[layer.block] for layer in layers) if self.candidates else ()

    def __str__(self) -> str:
        return f"{self.stream}.{self.sequence_id}({','.join(map(str, self.chain))})"

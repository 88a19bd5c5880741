"""A subnet: one candidate per block of the chain, at its place in a stream."""

from __future__ import annotations

from typing import NamedTuple

from naspipe.core.ids import LayerId, SequenceId, StreamId


class Subnet(NamedTuple):
    """What one pass trains; ``chain`` holds one candidate per block, shared layers included.

    It is empty of a pass that nobody needs: it has a number, and nothing to do.
    """

    stream: StreamId
    sequence_id: SequenceId
    chain: tuple[int, ...]

    def layer(self, block: int) -> LayerId:
        """The layer this subnet uses in a block."""
        return LayerId(self.stream, block, self.chain[block])

    def __str__(self) -> str:
        return f"{self.stream}.{self.sequence_id}({','.join(map(str, self.chain))})"

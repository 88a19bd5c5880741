"""Identifiers: small integers with names, and the records that consist of them.

Streams, subnets, stages, workers and versions are numbered. A layer is a candidate of a block of a
stream. A subnet has one option per block of the chain, and a position in a stream. An access is one
read or write of a layer by a subnet; all metrics are computed from these records.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, NewType

StreamId = NewType("StreamId", int)
"""An independent training (with its own seed and subnets) in a pipeline: 0, 1, 2, ..."""

SequenceId = NewType("SequenceId", int)
"""A subnet's position in the exploration order of its stream: 0, 1, 2, ... without gaps."""

StageId = NewType("StageId", int)
"""A position in a pipeline: 0, 1, 2, ... in the order of the chain."""

WorkerId = NewType("WorkerId", int)
"""A process that holds positions; the launcher and messages use this number."""

Version = NewType("Version", int)
"""State of a layer after a WRITE, named by the sequence ID of that WRITE."""

INITIAL = Version(-1)
"""The version of a layer before its first WRITE."""

LATEST = Version(-2)
"""In a ticket: the newest version when the access begins."""


FIRST_STREAM = StreamId(0)


class LayerId(NamedTuple):
    """One candidate of one block of one stream; prints as ``0:3.1``.

    ``block`` is the position in the chain, including shared layers;
    :meth:`naspipe.config.space.Space.layer` converts the numbers of choice blocks, which users
    know.
    """

    stream: StreamId
    block: int
    candidate: int

    def __str__(self) -> str:
        return f"{self.stream}:{self.block}.{self.candidate}"


def alone_in(layer: LayerId) -> LayerId:
    """Return the ID of a layer in the files of its own stream, where it is the only stream."""
    return layer._replace(stream=FIRST_STREAM)


class Subnet(NamedTuple):
    """The subnet of one pass; ``chain`` has one option per block, including shared layers.

    The chain is empty for a pass that is not needed: it has a number, but nothing to compute.
    """

    stream: StreamId
    sequence_id: SequenceId
    chain: tuple[int, ...]
    candidates: tuple[int, ...] = ()
    """The candidate that the option of each block uses, if several options may use one; empty if
    every option is a candidate.
    """

    def layer(self, block: int) -> LayerId:
        """Return the layer that this subnet uses in a block."""
        return LayerId(self.stream, block, (self.candidates or self.chain)[block])

    def options(self, layers: Iterable[LayerId]) -> tuple[int, ...]:
        """Return its options in these layers; empty if the layers determine them."""
        return tuple(self.chain[layer.block] for layer in layers) if self.candidates else ()

    def __str__(self) -> str:
        return f"{self.stream}.{self.sequence_id}({','.join(map(str, self.chain))})"


class AccessKind(Enum):
    """Kind of an access; the value is its letter in logs."""

    FORWARD = "F"
    """READ: the forward of a block."""
    BACKWARD = "B"
    """The backward of a block, including recomputation; it reads the version of its forward."""
    WRITE = "W"
    """The optimizer step; ``version`` is the one that it creates."""


class Access(NamedTuple):
    """One line of the access log; times are nanoseconds of the machine's monotonic clock.

    ``digest`` is that of the written bytes, or empty unless digests are recorded. ``stalled_ns`` is
    the time that the stage waited for the layer to be loaded; 0 is a cache hit. ``owed_ns`` is the
    initial part of a WRITE that computed gradients deferred by split backwards.
    """

    layer: LayerId
    sequence_id: SequenceId
    kind: AccessKind
    version: Version
    stage: StageId
    start_ns: int
    end_ns: int
    stalled_ns: int = 0
    digest: str = ""
    owed_ns: int = 0

    @property
    def is_hit(self) -> bool:
        """True if the layer was on the device when the stage was ready for it."""
        return self.stalled_ns == 0

    def __str__(self) -> str:
        return f"{self.layer}/{self.sequence_id}{self.kind.value}v{self.version}@{self.stage}"

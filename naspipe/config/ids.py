"""Identities: small integers with names, and the records that are made of them.

Streams, subnets, stages, workers and versions have numbers. A layer is a candidate of a block of a
stream. A subnet is one option per block of the chain, at its place in a stream. An access is what
one subnet did to one layer; every figure is computed from these records.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, NewType

StreamId = NewType("StreamId", int)
"""One independent run (its own seed and subnets) inside a pipeline: 0, 1, 2, ..."""

SequenceId = NewType("SequenceId", int)
"""A subnet's place in its stream's exploration order: 0, 1, 2, ... without gaps."""

StageId = NewType("StageId", int)
"""One position in a pipeline: 0, 1, 2, ... in the order of the chain."""

WorkerId = NewType("WorkerId", int)
"""One process that holds positions; the launcher and messages know it by this number."""

Version = NewType("Version", int)
"""State of a layer after one WRITE, named by the sequence ID of that WRITE."""

INITIAL = Version(-1)
"""The version every layer has before its first WRITE."""

LATEST = Version(-2)
"""In a ticket: whichever version is the newest when the access begins."""


FIRST_STREAM = StreamId(0)
"""The stream of a run that has only one."""


class LayerId(NamedTuple):
    """One candidate of one block of one stream; prints as ``0:3.1``.

    ``block`` is the position in the chain, shared layers included; what users call
    "choice block 3" is turned into it by :meth:`naspipe.config.space.Space.layer`.
    """

    stream: StreamId
    block: int
    candidate: int

    def __str__(self) -> str:
        return f"{self.stream}:{self.block}.{self.candidate}"


def alone_in(layer: LayerId) -> LayerId:
    """How a layer is called where its stream is the only one: in the stream's own files."""
    return layer._replace(stream=FIRST_STREAM)


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


class AccessKind(Enum):
    """What the access did; the value is its letter in logs."""

    FORWARD = "F"
    """READ: the forward of a block."""
    BACKWARD = "B"
    """The backward of a block, recompute included; reads the version its forward read."""
    WRITE = "W"
    """The optimizer step; ``version`` is the one it made."""


class Access(NamedTuple):
    """One line of the access log; times are nanoseconds of the machine's monotonic clock.

    ``digest`` is that of the written bytes, empty unless digests were asked for;
    ``stalled_ns`` is how long the stage had waited for the layer to be loaded; 0 is a cache hit.
    ``owed_ns`` is how much of a WRITE's time, from its start, went to gradients that split
    backwards had left; the rest is the update.
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
        """Whether the layer was on the device when the stage was free to begin."""
        return self.stalled_ns == 0

    def __str__(self) -> str:
        return f"{self.layer}/{self.sequence_id}{self.kind.value}v{self.version}@{self.stage}"

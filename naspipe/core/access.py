"""One access of one layer by one subnet: the record every number is computed from."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from naspipe.core.ids import LayerId, SequenceId, StageId, Version


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

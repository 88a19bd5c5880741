"""What residency has to know of layers.

Implementations: :class:`Size` is :class:`naspipe.planning.size.LayerSize`; :class:`Sizes` is
:class:`naspipe.planning.memory.DeviceSizes` or :class:`naspipe.planning.memory.StreamSizes`.
"""

from __future__ import annotations

from typing import Protocol

from naspipe.config.ids import FIRST_STREAM, StreamId


class Size(Protocol):
    """What one layer takes on the device."""

    @property
    def state_bytes(self) -> int:
        """Parameters, buffers and optimizer state."""
        ...

    @property
    def writes_forward(self) -> bool:
        """Whether its forward may change its buffers."""
        ...


class Sizes(Protocol):
    """The size of every layer: exact, and the same for the whole run."""

    def of(self, block: int, candidate: int, stream: StreamId = FIRST_STREAM, /) -> Size:
        """The size of one candidate of a block of a stream's chain."""
        ...

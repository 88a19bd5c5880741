"""What residency has to know of layers.

Implementations: :class:`Size` is :class:`naspipe.planning.size.LayerSize`; :class:`Sizes` is
:class:`naspipe.planning.size.SizeTable` or :class:`naspipe.planning.memory.DeviceSizes`.
"""

from __future__ import annotations

from typing import Protocol


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

    def of(self, block: int, candidate: int, /) -> Size:
        """The size of one candidate of a block of the chain."""
        ...

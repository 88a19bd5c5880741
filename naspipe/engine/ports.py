"""The small protocols through which behaviour plugs into the controller.

======================= ============================================================================
:class:`DispatchOrder`  those of :mod:`naspipe.engine.orders`
:class:`Ahead`          :class:`~naspipe.engine.predictor.Forecast`
:class:`Sizes`          those of :mod:`naspipe.plan.memory`
======================= ============================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

from naspipe.config.ids import FIRST_STREAM, LayerId, StreamId
from naspipe.engine.events import Task


class DispatchOrder(Protocol):
    """Decides which of several clear tasks runs first; affects only timing, never results."""

    @property
    def max_run(self) -> int | None:
        """Number of blocks to run before the stage chooses again; None for as many as are clear."""

    def key(self, task: Task, priority: int) -> tuple[Any, ...]:
        """Return a complete sort key: no two tasks of a stage share it; the smallest runs first.

        ``priority`` is that of the task's next block, from the subnet's admission.
        """


class Ahead(Protocol):
    """Layers in the order of their next use, each of them once."""

    def __iter__(self) -> Iterator[LayerId]: ...

    def may_use(self, layer: LayerId) -> bool:
        """Return False if no subnet has a block left to run on the layer."""

    def next_uses(self, layers: Collection[LayerId], reach: int) -> Mapping[LayerId, int]:
        """Return how far ahead each of these layers is used, if that is less than ``reach``."""


class Size(Protocol):
    """The size of one layer on the device."""

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters, buffers and optimizer state."""

    @property
    def writes_forward(self) -> bool:
        """True if a forward may change the layer's buffers."""


class Sizes(Protocol):
    """The size of every layer: exact, and the same for the whole run."""

    def of(self, block: int, candidate: int, stream: StreamId = FIRST_STREAM, /) -> Size: ...

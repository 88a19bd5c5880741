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
    """Which of several clear tasks a stage runs first; a matter of time, never of results."""

    @property
    def max_run(self) -> int | None:
        """Blocks to run before the stage chooses anew; None for as many as are clear."""

    def key(self, task: Task, priority: int) -> tuple[Any, ...]:
        """A complete sort key: no two tasks of a stage share it; the least runs first.

        ``priority`` is that of the task's next block, from the subnet's admission.
        """


class Ahead(Protocol):
    """Layers in the order of their next use, each of them once."""

    def __iter__(self) -> Iterator[LayerId]: ...

    def may_use(self, layer: LayerId) -> bool:
        """Return False if no subnet has a block left to run on the layer."""

    def next_uses(self, layers: Collection[LayerId], reach: int) -> Mapping[LayerId, int]:
        """How far ahead each of these layers is used, as far as that is less than ``reach``."""


class Size(Protocol):
    """The size of one layer on the device."""

    @property
    def state_bytes(self) -> int:
        """Parameters, buffers and optimizer state."""

    @property
    def writes_forward(self) -> bool:
        """Whether a forward may change the layer's buffers."""


class Sizes(Protocol):
    """The size of every layer: exact, and the same for the whole run."""

    def of(self, block: int, candidate: int, stream: StreamId = FIRST_STREAM, /) -> Size: ...

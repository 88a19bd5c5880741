"""What a stage does while it has nothing to compute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from naspipe.config.ids import LayerId
from naspipe.core.events import Event, StageIdle
from naspipe.runtime.layers.layer_store import LayerStore
from naspipe.stage.controller import StageController


class IdleWork:
    """Layers that will be needed are made; then the controller's turn, for checkpoints.

    Args:
        controller: may have work of its own.
        stores: make the layers of each stream.
        tell: lets the controller handle an event.
    """

    def __init__(
        self,
        controller: StageController,
        stores: Sequence[LayerStore],
        tell: Callable[[Event], None],
    ) -> None:
        self._controller = controller
        self._stores = tuple(stores)
        self._tell = tell
        self._unmade: deque[LayerId] = deque()
        self._asked: set[LayerId] = set()

    def __bool__(self) -> bool:
        return bool(self._unmade) or self._controller.is_idle_work

    def make(self, layers: Iterable[LayerId]) -> None:
        """Layers that will be needed, the first one first; each is made once.

        A stage that never waits gets to none of them, so what is kept must not grow with the
        subnets.
        """
        new = [layer for layer in layers if layer not in self._asked]
        self._asked.update(new)
        self._unmade.extend(new)

    def go_on(self) -> None:
        """Do a little of it."""
        if self._unmade:
            layer = self._unmade.popleft()
            self._stores[layer.stream].prepare(layer)
        else:
            self._tell(StageIdle(time.monotonic_ns()))

    def finish(self) -> None:
        """Do what has to be done at last; layers that nobody needed are not made any more."""
        self._unmade.clear()
        while self:
            self.go_on()

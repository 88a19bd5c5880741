"""A stage without a budget: every layer is on the device from the beginning."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from naspipe.config.ids import AccessKind, LayerId
from naspipe.core.ports import Ahead
from naspipe.residency.manager import MemoryCommand


class AllResident:
    """Answers as :class:`ResidencyManager` would if nothing were ever loaded or evicted."""

    __slots__ = ()

    used_bytes = 0
    """Not counted."""
    peak_bytes = 0
    """Not counted."""
    resident: tuple[LayerId, ...] = ()
    """Not listed."""

    limits_memory = False
    """So gradients may wait for their WRITEs until a run is over."""

    def is_resident(self, layer: LayerId) -> bool:
        """Always."""
        return True

    def acquire(self, layers: Sequence[LayerId]) -> int:
        """All of them."""
        return len(layers)

    def release(self, layer: LayerId, kind: AccessKind) -> None:
        """Nothing to do."""

    def needs_save(self, layer: LayerId) -> bool:
        """Never: there is one copy."""
        return False

    def save_first(self, layer: LayerId) -> None:
        """Nothing to do."""

    def on_loaded(self, layer: LayerId) -> None:
        """Nothing to do."""

    def on_saved(self, layer: LayerId) -> None:
        """Nothing to do."""

    def forget(self, layer: LayerId) -> Sequence[MemoryCommand]:
        """No commands."""
        return ()

    def arrive(self, layer: LayerId) -> Sequence[MemoryCommand]:
        """No commands."""
        return ()

    def plan(
        self,
        look_ahead: Callable[[], Ahead],
        is_demanded: bool = False,
        token: Hashable = None,
    ) -> Sequence[MemoryCommand]:
        """No commands; nobody looks ahead."""
        return ()

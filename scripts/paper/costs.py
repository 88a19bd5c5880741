"""Invented and random durations for simulations, where nothing was measured."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from naspipe.config.ids import AccessKind, LayerId
from naspipe.engine.events import LAYER, Parcel, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCosts:
    """Fixed costs: one forward time per block of the chain and candidate, others in proportion."""

    forward_ns: Mapping[tuple[int, int], int]
    """Forward time by (block, candidate)."""
    backward_ratio: float = 2.0
    """Backward time over forward time; 3 with recompute."""
    backward_ns: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Backward time by (block, candidate), in place of the ratio, where it is named."""
    write_ns: int = 0
    link_ns: int = 0
    swap_ns: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Copy time between host and device by (block, candidate); 0 where it is not named."""

    def access_ns(self, layer: LayerId, kind: AccessKind, sequence_id: int = -1) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        if kind is AccessKind.WRITE:
            return self.write_ns
        place = (layer.block, layer.candidate)
        if kind is AccessKind.BACKWARD and place in self.backward_ns:
            return self.backward_ns[place]
        forward = self.forward_ns[place]
        return forward if kind is AccessKind.FORWARD else int(forward * self.backward_ratio)

    def add_ns(self, layer: LayerId, sequence_id: int) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return 0

    def make_ns(self, layer: LayerId) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return 0

    def between_ns(self, parcels: int = 0) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return 0

    def message_ns(self, receiver: Task) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self.link_ns

    def push_ns(self, layer: LayerId, parcel: Parcel = LAYER) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self.link_ns

    def copy_ns(self, layer: LayerId) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self.swap_ns.get((layer.block, layer.candidate), 0)


@dataclass(slots=True)
class RandomCosts:
    """Every duration drawn anew between 0 and a maximum: for tests of what must not matter."""

    seed: int
    max_access_ns: int = 1000
    max_message_ns: int = 3000
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def access_ns(self, layer: LayerId, kind: AccessKind, sequence_id: int = -1) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self._random.randint(0, self.max_access_ns)

    def add_ns(self, layer: LayerId, sequence_id: int) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self._random.randint(0, self.max_access_ns)

    def make_ns(self, layer: LayerId) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return 0

    def between_ns(self, parcels: int = 0) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return 0

    def message_ns(self, receiver: Task) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self._random.randint(0, self.max_message_ns)

    def push_ns(self, layer: LayerId, parcel: Parcel = LAYER) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self._random.randint(0, self.max_message_ns)

    def copy_ns(self, layer: LayerId) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self._random.randint(0, self.max_access_ns)

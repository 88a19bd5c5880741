"""Durations on the virtual clock: computing, writing, sending, copying and initializing layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from naspipe.config.ids import AccessKind, LayerId
from naspipe.engine.events import LAYER, Parcel, Task
from naspipe.plan.costs import CostTable


class Costs(Protocol):
    """Durations in nanoseconds."""

    def access_ns(self, layer: LayerId, kind: AccessKind, sequence_id: int = -1) -> int:
        """Return the compute time of a block's forward or backward, or of a WRITE, of one subnet.

        For a forward or backward, the option replaces the layer's candidate.
        """

    def add_ns(self, layer: LayerId, sequence_id: int) -> int:
        """Return the time of a WRITE that only adds a pass's gradients to those of its step."""

    def make_ns(self, layer: LayerId) -> int:
        """Return the time to initialize a layer, which happens at its first use on each stage."""

    def between_ns(self, parcels: int = 0) -> int:
        """Return the stage's own overhead before every access, which counts as idle time.

        ``parcels`` is the number of layers, or parts of layers, sent or received since the previous
        access.
        """

    def message_ns(self, receiver: Task) -> int:
        """Return the time from the end of a task to the arrival of its output at the receiver."""

    def push_ns(self, layer: LayerId, parcel: Parcel = LAYER) -> int:
        """Return the time from a push of (a part of) a layer to its arrival at its user's stage."""

    def copy_ns(self, layer: LayerId) -> int:
        """Return the time of one copy of a layer between host memory and the device."""


LINK_NS_PER_BYTE = 0.4
"""For a layer sent to another process: 0.4 ms per MB was measured over ipc."""


ADDING = 0.07
"""Share of a layer's WRITE time needed to add the gradients of one pass; measured: 0.05 to 0.1."""


PAUSE_NS = 100_000
"""Time between two accesses of a stage; measured: 0.09 ms alone, 0.15 ms next to another one."""


PARCEL_NS = 250_000
"""Time of a stage to send or receive (a part of) a small layer; measured: 0.15 to 0.5 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCosts:
    """Measured costs, with a fixed time for each message."""

    table: CostTable
    link_ns: int = 500_000
    """Time to encode, send and receive one boundary."""
    state_bytes: Callable[[LayerId], int] = lambda layer: 0
    """Bytes that a copy between host and device moves."""
    bytes_per_ns: float = 12.0
    pushed_bytes: Callable[[LayerId], int] = lambda layer: 0
    """Bytes of a layer's parameters sent to another stage; its gradients are as large."""
    copy_latency_ns: int = 0
    pause_ns: int = 0
    """Overhead of a stage between two accesses, if it has work."""
    parcel_ns: int = 0
    """Time that a stage spends on each (part of a) layer that it sends or receives."""

    def access_ns(self, layer: LayerId, kind: AccessKind, sequence_id: int = -1) -> int:
        cost = self.table.of(layer.block, layer.candidate)
        match kind:
            case AccessKind.FORWARD:
                return cost.forward_ns
            case AccessKind.BACKWARD:
                return cost.backward_ns
            case AccessKind.WRITE:
                return cost.owed_ns + cost.write_ns

    def add_ns(self, layer: LayerId, sequence_id: int) -> int:
        cost = self.table.of(layer.block, layer.candidate)
        return cost.owed_ns + int(ADDING * cost.write_ns)

    def make_ns(self, layer: LayerId) -> int:
        return self.table.of(layer.block, layer.candidate).make_ns

    def between_ns(self, parcels: int = 0) -> int:
        return self.pause_ns + parcels * self.parcel_ns

    def message_ns(self, receiver: Task) -> int:
        return self.link_ns

    def push_ns(self, layer: LayerId, parcel: Parcel = LAYER) -> int:
        return self.link_ns + int(self.pushed_bytes(layer) * LINK_NS_PER_BYTE)

    def copy_ns(self, layer: LayerId) -> int:
        return self.copy_latency_ns + int(self.state_bytes(layer) / self.bytes_per_ns)


@dataclass(frozen=True, slots=True)
class StreamCosts:
    """Costs of streams that train different spaces."""

    streams: Sequence[Costs]

    def access_ns(self, layer: LayerId, kind: AccessKind, sequence_id: int = -1) -> int:
        return self.streams[layer.stream].access_ns(layer, kind, sequence_id)

    def add_ns(self, layer: LayerId, sequence_id: int) -> int:
        return self.streams[layer.stream].add_ns(layer, sequence_id)

    def make_ns(self, layer: LayerId) -> int:
        return self.streams[layer.stream].make_ns(layer)

    def between_ns(self, parcels: int = 0) -> int:
        return max(costs.between_ns(parcels) for costs in self.streams)

    def message_ns(self, receiver: Task) -> int:
        return self.streams[receiver.stream].message_ns(receiver)

    def push_ns(self, layer: LayerId, parcel: Parcel = LAYER) -> int:
        return self.streams[layer.stream].push_ns(layer, parcel)

    def copy_ns(self, layer: LayerId) -> int:
        return self.streams[layer.stream].copy_ns(layer)

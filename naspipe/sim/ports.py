"""What everything takes on the virtual clock, and who is told there what a step trains.

Implementations: :mod:`naspipe.sim.costs` (fixed, measured, random, of several streams) and
:class:`naspipe.sim.fidelity.LoggedCosts`; :class:`naspipe.sim.driver.SimulatedStage`.
"""

from __future__ import annotations

from typing import Protocol

from naspipe.config.ids import AccessKind, LayerId, StreamId
from naspipe.core.parcels import LAYER, Parcel
from naspipe.core.task import Task


class Costs(Protocol):
    """Durations in nanoseconds."""

    def access_ns(self, layer: LayerId, kind: AccessKind, sequence_id: int = -1) -> int:
        """Compute time of one block's forward or backward, or of one WRITE, of one subnet.

        Of a forward and a backward, the option stands in the place of the layer's candidate.
        """
        ...

    def add_ns(self, layer: LayerId, sequence_id: int) -> int:
        """Of a WRITE that only adds a pass's gradients to its step's."""
        ...

    def make_ns(self, layer: LayerId) -> int:
        """Making a layer, once on each stage that uses it, before the first block there."""
        ...

    def between_ns(self, parcels: int = 0) -> int:
        """Before every access: what the stage itself takes, which counts as idle.

        ``parcels`` (parts of) layers were sent to other stages or taken from them since the one
        before it.
        """
        ...

    def message_ns(self, receiver: Task) -> int:
        """From the end of a task to the arrival of its output at the receiving stage."""
        ...

    def push_ns(self, layer: LayerId, parcel: Parcel = LAYER) -> int:
        """From a push of (a part of) a layer to its arrival at its user's stage."""
        ...

    def copy_ns(self, layer: LayerId) -> int:
        """One copy of a layer between host memory and the device."""
        ...


class Learner(Protocol):
    """A stage, as the launcher sees it where steps begin with probes."""

    def learn(self, stream: StreamId, known: int) -> None:
        """So many subnets of a stream are known by now."""
        ...

"""The ports of the controller's own package; those of the packages below are in ``core.ports``.

Implementations of :class:`WriteGate` are in :mod:`naspipe.stage.gates`: ``StepGate``
(``clip_global_norm``), ``PartitionLaunch`` and ``EndLaunch`` (``reduction_launch``).
"""

from __future__ import annotations

from typing import Protocol

from naspipe.config.ids import LayerId, Version
from naspipe.core.commands import Command
from naspipe.core.events import ContributionArrived
from naspipe.schedule.whereabouts import Moves
from naspipe.stage.work import Progress


class WriteGate(Protocol):
    """Decides when the WRITEs of a step may begin, or its sums leave, beside their own order.

    It waits for the contributions of other stages to an exchange, named after it. Several may
    hold a pass back: each counts once in ``Progress.holds`` and in ``Progress.unsettled``.
    """

    @property
    def exchange(self) -> str:
        """The name of what stages contribute to."""
        ...

    def admit(self, progress: Progress, moves: Moves) -> None:
        """A pass is under way, also one that has no blocks on this stage.

        Args:
            progress: of the pass.
            moves: with the last pass of a step: what goes to other stages, and comes from them.
        """
        ...

    def joined(self, layer: LayerId, version: Version) -> list[Command]:
        """Such gradients, of the passes up to ``version``, are with this stage's."""
        ...

    def finish(self, progress: Progress) -> list[Command]:
        """A pass's backwards are through on this stage."""
        ...

    def arrive(self, event: ContributionArrived) -> list[Progress]:
        """A contribution is here; returns the passes that this gate holds back no longer."""
        ...

    def holds_sum(self, layer: LayerId, version: Version) -> bool:
        """Whether a layer's gradients, added up to the pass ``version``, have to stay here.

        They are asked for again when a pass is through here, or released.
        """
        ...

"""What is known of a pipeline's subnets from their admissions alone, the same for every stage."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from naspipe.config.ids import StageId
from naspipe.config.rules import BlockRule
from naspipe.schedule.uses import Uses
from naspipe.schedule.whereabouts import Whereabouts


@dataclass(frozen=True, slots=True)
class History:
    """Noted once per subnet in a process: O(blocks), however many stages ask.

    A stage's own process has one; the simulator's stages share one.
    """

    rules: Sequence[Sequence[BlockRule]]
    """Of each stream, the rule of each block of its chain."""
    whereabouts: Whereabouts
    uses: Uses

    @classmethod
    def of(
        cls,
        rules: Sequence[Sequence[BlockRule]],
        asking: Collection[StageId] | None = None,
        **how: Any,
    ) -> History:
        """A new one, for chains of these rules; see :class:`Whereabouts` for what else."""
        uses = Uses(is_shared=asking is None or len(asking) > 1)
        return cls(rules, Whereabouts(rules, asking, **how), uses)

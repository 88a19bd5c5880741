"""Where layers are: which stage writes each layer's newest version, and who takes it over.

With a partition per subnet, neighbouring users of a layer may run on different stages. The
layer is then *mirrored*: the stage that wrote it pushes it to the stage of its next user
(NASPipe, section 3.3), and only there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from naspipe.core.errors import InvariantError
from naspipe.core.ids import LayerId, StageId, Version
from naspipe.core.partition import Partition
from naspipe.core.rules import Exact, Frozen, Rule
from naspipe.core.subnet import Subnet


class Departure(NamedTuple):
    """A layer's next user runs on ``stage``: it needs the version that is written here."""

    layer: LayerId
    version: Version
    stage: StageId


class Whereabouts:
    """Follows every layer over the stages, from the admissions alone.

    Args:
        stage: whose departures to tell.
        rules: of each stream, the rule of each block of its chain.
    """

    def __init__(self, stage: StageId, rules: Sequence[Sequence[Rule]]) -> None:
        self._stage = stage
        self._rules = tuple(map(tuple, rules))
        self._newest: dict[LayerId, tuple[Version, StageId]] = {}

    def admit(self, subnet: Subnet, partition: Partition) -> list[Departure]:
        """What has to leave this stage for a subnet, told in sequence order without gaps.

        Raises:
            InvariantError: when the subnet moves a layer whose rule is not ``exact``; such
                layers stay on one stage, because readers of several versions share them.
        """
        departures: list[Departure] = []
        rules = self._rules[subnet.stream]
        version = Version(subnet.sequence_id)
        for number in range(partition.num_stages):
            stage = StageId(number)
            for block in partition.blocks(stage):
                if isinstance(rules[block], Frozen):
                    continue
                layer = subnet.layer(block)
                before = self._newest.get(layer)
                self._newest[layer] = (version, stage)
                if before is None or before[1] == stage:
                    continue
                if not isinstance(rules[block], Exact):
                    raise InvariantError(
                        f"layer {layer}: rule {rules[block]} stays on stage {before[1]}, "
                        f"but subnet {subnet.stream}.{version} uses it on stage {stage}"
                    )
                if before[1] == self._stage:
                    departures.append(Departure(layer, before[0], stage))
        return departures

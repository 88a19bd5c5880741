"""Where layers are: which stage writes each layer's newest version, and who takes it over.

With a partition per subnet, neighbouring users of a layer may run on different stages. The
layer is then *mirrored*: the stage that wrote it pushes it to the stage of its next user
(NASPipe, section 3.3), and only there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from naspipe.core.errors import InvariantError
from naspipe.core.events import KeptLayer
from naspipe.core.ids import LayerId, SequenceId, StageId, StreamId, Version
from naspipe.core.partition import Partition
from naspipe.core.rules import Exact, Frozen, Rule
from naspipe.core.subnet import Subnet


class Departure(NamedTuple):
    """A layer's next user runs on ``stage``: it needs the version that is written here."""

    layer: LayerId
    version: Version
    stage: StageId


class AtCut(NamedTuple):
    """The layers of one stage at a cut, in chain order.

    ``kept`` are those of a checkpoint that nobody has used since the run was resumed.
    """

    held: list[LayerId]
    kept: list[LayerId]


class Whereabouts:
    """Follows every layer over the stages, from the admissions alone.

    Each subnet is followed once, by the first stage that admits it; stages of one process may
    share one of these.

    Args:
        rules: of each stream, the rule of each block of its chain.
        asking: the stages that will ask; nothing is kept for others. None for every stage.
    """

    def __init__(
        self, rules: Sequence[Sequence[Rule]], asking: Collection[StageId] | None = None
    ) -> None:
        self._rules = tuple(map(tuple, rules))
        self._asking = asking
        self._newest: dict[LayerId, tuple[Version, StageId]] = {}
        self._next: dict[StreamId, int] = {}
        self._leaving: dict[tuple[StreamId, SequenceId, StageId], list[Departure]] = {}
        """By the subnet that takes layers over and the stage they leave, until it has asked."""
        self._frozen: dict[LayerId, StageId] = {}
        """The stage of their first user."""
        self._kept: dict[LayerId, StageId] = {}
        """Layers of a checkpoint that nobody has used since."""
        self._cuts: dict[tuple[StreamId, SequenceId], dict[StageId, AtCut]] = {}
        """What belongs to each stage at a cut, until it has asked."""

    def resume(self, layers: Iterable[KeptLayer]) -> None:
        """Go on behind a checkpoint, from which every stage reads what it uses first."""
        self._kept |= {layer: keeper for layer, _, keeper in layers}

    def cut(self, stage: StageId, stream: StreamId, cut: SequenceId) -> AtCut:
        """The layers that belong to a stage at a cut, before subnet ``cut`` is followed.

        A layer belongs to the stage of its last user; a frozen one, which nobody changes, to
        that of its first. Each stage asks once.
        """
        if (stream, cut) not in self._cuts:
            self._cuts[stream, cut] = self._at_cut(stream)
        return self._cuts[stream, cut].pop(stage, AtCut([], []))

    def _at_cut(self, stream: StreamId) -> dict[StageId, AtCut]:
        found: dict[StageId, AtCut] = defaultdict(lambda: AtCut([], []))
        used = {layer: stage for layer, (_, stage) in self._newest.items()} | self._frozen
        for layer in sorted(each for each in used if each.stream == stream):
            found[used[layer]].held.append(layer)
        for layer in sorted(each for each in self._kept if each.stream == stream):
            found[self._kept[layer]].kept.append(layer)
        return {stage: layers for stage, layers in found.items() if self._asks(stage)}

    def _asks(self, stage: StageId) -> bool:
        return self._asking is None or stage in self._asking

    def admit(self, stage: StageId, subnet: Subnet, partition: Partition) -> list[Departure]:
        """What has to leave a stage for a subnet; each stage asks once, in sequence order.

        Raises:
            InvariantError: when the subnet moves a layer whose rule is not ``exact``; such
                layers stay on one stage, because readers of several versions share them.
        """
        stream, sequence_id, _ = subnet
        if sequence_id >= self._next.get(stream, 0):
            self._next[stream] = sequence_id + 1
            self._follow(subnet, partition)
        return self._leaving.pop((stream, sequence_id, stage), [])

    def _follow(self, subnet: Subnet, partition: Partition) -> None:
        stream, sequence_id, chain = subnet
        rules, newest, version = self._rules[stream], self._newest, Version(sequence_id)
        for number in range(partition.num_stages):
            stage = StageId(number)
            here = (version, stage)
            for block in partition.blocks(stage):
                layer = LayerId(stream, block, chain[block])
                if self._kept:
                    self._kept.pop(layer, None)
                if isinstance(rules[block], Frozen):
                    self._frozen.setdefault(layer, stage)
                    continue
                before = newest.get(layer)
                newest[layer] = here
                if before is None or before[1] == stage:
                    continue
                if not isinstance(rules[block], Exact):
                    raise InvariantError(
                        f"layer {layer}: rule {rules[block]} stays on stage {before[1]}, "
                        f"but subnet {stream}.{version} uses it on stage {stage}"
                    )
                if self._asks(before[1]):
                    departure = Departure(layer, before[0], stage)
                    self._leaving.setdefault((stream, sequence_id, before[1]), []).append(departure)

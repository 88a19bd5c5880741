"""Which stages have anything to do with a stream; the others never hear of its subnets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from naspipe.config.ids import StageId
from naspipe.config.partition import Partition
from naspipe.config.wiring import Wiring


def participants(
    partitions: Sequence[Iterable[Partition]], wiring: Wiring, num_stages: int
) -> list[frozenset[StageId]]:
    """Of each stream, the stages that take part in it.

    They have blocks of some subnet of it, or of one that takes its outputs or hands it some; of one
    that is not trained and hands it some, any block: what a checkpoint relies on is logged there.

    Args:
        partitions: of each stream, all that its subnets have; none where they are not known, so
            that every stage takes part.
        wiring: how the streams are joined.
        num_stages: of the pipeline.
    """
    every = frozenset(map(StageId, range(num_stages)))
    known = [frozenset(each) for each in partitions]
    found = [
        {stage for stage in every for each in own if each.blocks(stage)} if own else set(every)
        for own in known
    ]
    for tap in wiring.taps:
        for (stream, _), (other, block) in ((tap.source, tap.sink), (tap.sink, tap.source)):
            found[stream] |= {each.stage_of(block) for each in known[other] if each.num_blocks}
        if not wiring.of(tap.source[0]).is_trained:
            source = known[tap.source[0]]
            found[tap.sink[0]] |= {s for s in every for each in source if each.blocks(s)}
    return [frozenset(stages) for stages in found]

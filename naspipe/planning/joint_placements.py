"""Which stage runs which blocks of several streams that belong together.

The pieces are those of a blockwise distillation (Pipe-BD, DATE'23): forward-only streams that teach
trained ones. A *pair* is a trained stream and those that teach it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from naspipe.config.definition import PARTITIONS
from naspipe.config.errors import ConfigError
from naspipe.config.partition import Partition, make_partition
from naspipe.config.wiring import TapRole, Wiring
from naspipe.planning.balance import balanced_partition
from naspipe.planning.packing import Link, pack


@dataclass(frozen=True, slots=True)
class Pieces:
    """Streams, as far as their placement depends on them."""

    costs: tuple[tuple[float, ...], ...]
    """Of each stream, nanoseconds of a pass in each block, on average."""
    wiring: Wiring
    output_bytes: tuple[int, ...]
    """Of each stream, what its last block hands to others in a pass."""
    passes: int = 1
    """Of a step."""

    @property
    def pairs(self) -> list[list[int]]:
        """Trained streams in their order, each behind those that teach it.

        Raises:
            ConfigError: where there is none, or a stream that teaches nobody.
        """
        trained = [n for n in range(len(self.costs)) if self.wiring.of(n).is_trained]
        lessons = [tap for tap in self.wiring.taps if tap.role is TapRole.LESSON]
        found = [[*(int(t.source[0]) for t in lessons if t.sink[0] == n), n] for n in trained]
        if not found or {each for pair in found for each in pair} != set(range(len(self.costs))):
            raise ConfigError(
                "partition: expected balanced, rotated or static, except where trained blocks each "
                "have a block that teaches them (naspipe distill)"
            )
        return found

    def cost(self, streams: Sequence[int]) -> float:
        """Of whole streams together."""
        return sum(sum(self.costs[stream]) for stream in streams)


JointPlacement = Callable[[Pieces, int], list[list[Partition]]]
"""Of each stream, the partition of each pass of a step: all alike, or by the number of the pass."""


def pairs(pieces: Pieces, num_stages: int) -> list[list[Partition]]:
    """Consecutive pairs on each stage, as the paper has it."""
    units = pieces.pairs
    cut = balanced_partition([pieces.cost(unit) for unit in units], num_stages)
    return _whole(pieces, units, [cut.stage_of(n) for n in range(len(units))], num_stages)


def packed(pieces: Pieces, num_stages: int) -> list[list[Partition]]:
    """Pairs on any stage."""
    units = pieces.pairs
    stages = pack([pieces.cost(unit) for unit in units], _links(pieces, units), num_stages)
    return _whole(pieces, units, stages, num_stages)


def free(pieces: Pieces, num_stages: int) -> list[list[Partition]]:
    """Every stream on any stage."""
    units = [[stream] for stream in range(len(pieces.costs))]
    stages = pack([pieces.cost(unit) for unit in units], _links(pieces, units), num_stages)
    return _whole(pieces, units, stages, num_stages)


def layers(pieces: Pieces, num_stages: int) -> list[list[Partition]]:
    """Consecutive blocks on each stage: pair after pair, teachers first, cut anywhere."""
    cells = [
        (stream, block)
        for pair in pieces.pairs
        for stream in pair
        for block in range(len(pieces.costs[stream]))
    ]
    cut = balanced_partition([pieces.costs[stream][b] for stream, b in cells], num_stages)
    counts = [[0] * num_stages for _ in pieces.costs]
    for place, (stream, _) in enumerate(cells):
        counts[stream][cut.stage_of(place)] += 1
    return [[make_partition((0, *accumulate(own)))] for own in counts]


def hybrid(pieces: Pieces, num_stages: int) -> list[list[Partition]]:
    """Consecutive pairs on each group of stages, which share the passes of a step.

    The groups are those whose dearest stage is cheapest (automatic hybrid distribution, section
    IV-C). A group has no more stages than a step has passes.
    """
    units, passes = pieces.pairs, pieces.passes
    costs = [pieces.cost(unit) for unit in units]
    best: dict[tuple[int, int], tuple[float, list[tuple[int, int]]]] = {(0, 0): (0.0, [])}
    for units_done in range(1, len(units) + 1):
        for stages_used in range(1, num_stages + 1):
            ways = [
                (max(before[0], sum(costs[first:units_done]) * _share(size, passes)),
                 [*before[1], (units_done, size)])
                for first in range(units_done)
                for size in range(1, min(stages_used, passes) + 1)
                if (before := best.get((first, stages_used - size)))
            ]  # fmt: skip
            if ways:
                best[units_done, stages_used] = min(ways)
    if (len(units), num_stages) not in best:
        raise ConfigError(
            f"partition hybrid: expected at most {len(units) * passes} stages for {len(units)} "
            f"blocks and {passes} passes a step, found {num_stages}"
        )
    found: list[list[Partition]] = [[] for _ in pieces.costs]
    first_unit, first_stage = 0, 0
    for end, size in best[len(units), num_stages][1]:
        shares = [first_stage + number * size // passes for number in range(passes)]
        for stream in (each for unit in units[first_unit:end] for each in unit):
            length = len(pieces.costs[stream])
            found[stream] = [on_one_stage(stage, length, num_stages) for stage in shares]
        first_unit, first_stage = end, first_stage + size
    return found


def shared(pieces: Pieces, num_stages: int) -> list[list[Partition]]:
    """Every pair on all stages, which share the passes of a step (internal relaying)."""
    if num_stages > pieces.passes:
        raise ConfigError(
            f"partition shared: expected at most {pieces.passes} stages, one for each pass of a "
            f"step, found {num_stages}; use --set passes=accumulate:{num_stages} or more"
        )
    stages = [number * num_stages // pieces.passes for number in range(pieces.passes)]
    return [[on_one_stage(stage, len(own), num_stages) for stage in stages] for own in pieces.costs]


def _share(size: int, passes: int) -> float:
    """What part of a step's passes the busiest of a group's stages has."""
    bounds = [-(-stage * passes // size) for stage in range(size + 1)]
    return max(high - low for low, high in pairwise(bounds)) / passes


def _links(pieces: Pieces, units: Sequence[Sequence[int]]) -> list[Link]:
    unit_of = {stream: number for number, unit in enumerate(units) for stream in unit}
    return [
        Link(unit_of[tap.source[0]], unit_of[tap.sink[0]], pieces.output_bytes[tap.source[0]])
        for tap in pieces.wiring.taps
    ]


def _whole(
    pieces: Pieces, units: Sequence[Sequence[int]], stages: Sequence[int], num_stages: int
) -> list[list[Partition]]:
    """Whole streams; each stage has one at least."""
    if num_stages > len(units):
        raise ConfigError(
            f"partition: expected at most {len(units)} stages, one for each piece, found "
            f"{num_stages}"
        )
    found: list[list[Partition]] = [[] for _ in pieces.costs]
    for unit, stage in zip(units, stages, strict=True):
        for stream in unit:
            found[stream] = [on_one_stage(stage, len(pieces.costs[stream]), num_stages)]
    return found


def on_one_stage(stage: int, length: int, num_stages: int) -> Partition:
    """A chain that is whole on one stage."""
    return make_partition((0,) * (stage + 1) + (length,) * (num_stages - stage))


def moved_bytes(partitions: Sequence[Sequence[Partition]], pieces: Pieces) -> int:
    """What goes from stage to stage in a step: tapped outputs, each once to each stage."""
    total = 0
    for number in range(pieces.passes):
        own = [each[number % len(each)] for each in partitions]
        ways = {
            (source[0], own[source[0]].stage_of(source[1]), own[sink[0]].stage_of(sink[1]))
            for source, sink in ((tap.source, tap.sink) for tap in pieces.wiring.taps)
        }
        total += sum(pieces.output_bytes[s] for s, here, there in ways if here != there)
    return total


JOINT_PLACEMENTS: dict[str, JointPlacement] = {
    "pairs": pairs,
    "packed": packed,
    "layers": layers,
    "free": free,
    "hybrid": hybrid,
    "shared": shared,
}
"""Placements of streams that belong together, by the names of the setting ``partition``."""


def register_joint_placement(name: str, placement: JointPlacement) -> None:
    """Let a placement of streams that belong together be chosen by a name."""
    JOINT_PLACEMENTS[name] = placement
    if name not in PARTITIONS:
        PARTITIONS.append(name)

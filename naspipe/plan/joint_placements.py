"""Which stage runs which blocks of several streams that are placed together.

The pieces are those of a blockwise distillation (Pipe-BD, DATE'23): forward-only teacher streams
and trained streams. A *pair* is a trained stream and its teachers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from typing import NamedTuple

from naspipe.config.errors import ConfigError
from naspipe.config.execution import PARTITIONS
from naspipe.config.partition import Partition, make_partition
from naspipe.config.wiring import TapRole, Wiring
from naspipe.plan.partitions import balanced_partition

MOST_STEPS = 200_000
"""Maximum number of steps of a search; the best placement found by then is used."""

NEAR = 0.002
"""Share of the minimal peak that is given up to move fewer bytes."""


class Link(NamedTuple):
    """The bytes that one piece sends to another, if they are on different stages."""

    source: int
    sink: int
    num_bytes: int


def pack(costs: Sequence[float], links: Sequence[Link], num_stages: int) -> tuple[int, ...]:
    """Return the stage of each piece, minimizing the maximum stage cost, then the bytes moved.

    The most expensive piece is placed first, always on the cheapest stage; pieces are then moved
    and exchanged as long as that improves the placement. A branch-and-bound search continues from
    there, limited to :data:`MOST_STEPS`, so the result is optimal for up to about 12 pieces.
    """
    problem = _Problem(tuple(costs), tuple(links), num_stages)
    loads, dealt = [0.0] * num_stages, [0] * len(costs)
    for piece in sorted(range(len(costs)), key=lambda piece: (-costs[piece], piece)):
        dealt[piece] = loads.index(min(loads))
        loads[dealt[piece]] += costs[piece]
    dealt = problem.searched(problem.improved(dealt))
    limit = problem.peak(dealt) * (1 + NEAR)
    dealt = problem.searched(problem.improved(dealt, limit), limit)
    names: dict[int, int] = {}  # stages are numbered by the first piece of each
    return tuple(names.setdefault(stage, len(names)) for stage in dealt)


class _Problem(NamedTuple):
    costs: tuple[float, ...]
    links: tuple[Link, ...]
    num_stages: int

    def peak(self, dealt: Sequence[int]) -> float:
        loads = [0.0] * self.num_stages
        for cost, stage in zip(self.costs, dealt, strict=True):
            loads[stage] += cost
        return max(loads)

    def moved(self, dealt: Sequence[int]) -> int:
        return sum(each.num_bytes for each in self.links if dealt[each.source] != dealt[each.sink])

    def improved(self, dealt: list[int], limit: float = 0.0) -> list[int]:
        """Exchange and move single pieces as long as that improves the placement."""

        def badness(way: Sequence[int]) -> tuple[float, float, float]:
            peak = self.peak(way)
            return max(peak, limit), self.moved(way), peak

        while ways := list(_neighbours(dealt, self.num_stages)):
            better = min(ways, key=badness)
            if badness(better) >= badness(dealt):
                break
            dealt = better
        return dealt

    def searched(self, dealt: list[int], limit: float = 0.0) -> list[int]:
        """Return the best placement: by its peak or, if the peak is limited, by the bytes moved."""
        order = sorted(range(len(self.costs)), key=lambda n: n if limit else -self.costs[n])
        best, least = dealt, self.moved(dealt) if limit else self.peak(dealt)
        place = {piece: number for number, piece in enumerate(order)}
        # For each piece, the earlier pieces in this order that it is linked with, and the bytes.
        linked: dict[int, list[tuple[int, int]]] = {piece: [] for piece in order}
        for source, sink, num_bytes in self.links:
            if source != sink:
                first, last = sorted((source, sink), key=place.__getitem__)
                linked[last].append((first, num_bytes))
        loads, places, left = [0.0] * self.num_stages, dict[int, int](), MOST_STEPS

        def go_on(depth: int, used: int, badness: float) -> None:
            nonlocal best, least, left
            left -= 1
            if depth == len(order):
                best, least = [places[piece] for piece in range(len(order))], badness
                return
            piece = order[depth]
            for stage in range(min(used + 1, self.num_stages)):
                before = loads[stage]
                load = before + self.costs[piece]
                moved = sum(size for other, size in linked[piece] if places[other] != stage)
                worse = badness + moved if limit else max(badness, load)
                if worse < least and not (limit and load > limit) and left > 0:
                    places[piece], loads[stage] = stage, load
                    go_on(depth + 1, max(used, stage + 1), worse)
                    loads[stage] = before

        go_on(0, 0, 0.0)
        return best


def _neighbours(dealt: list[int], num_stages: int) -> Iterator[list[int]]:
    for piece, own in enumerate(dealt):
        for stage in range(num_stages):
            if stage != own:
                yield [*dealt[:piece], stage, *dealt[piece + 1 :]]
    for one, other in combinations(range(len(dealt)), 2):
        if dealt[one] != dealt[other]:
            changed = list(dealt)
            changed[one], changed[other] = dealt[other], dealt[one]
            yield changed


@dataclass(frozen=True, slots=True)
class Pieces:
    """The properties of streams that their placement depends on."""

    costs: tuple[tuple[float, ...], ...]
    """For each stream, the mean nanoseconds of a pass in each block."""
    wiring: Wiring
    output_bytes: tuple[int, ...]
    """For each stream, the bytes that its last block sends to others in a pass."""
    passes: int = 1

    @property
    def pairs(self) -> list[list[int]]:
        """Trained streams in their order, each after its teachers.

        Raises:
            ConfigError: if there is none, or a stream teaches no other.
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
        return sum(sum(self.costs[stream]) for stream in streams)


JointPlacement = Callable[[Pieces, int], list[list[Partition]]]
"""Returns, for each stream, the partition of each pass of a step; a single one applies to all."""


def pairs(pieces: Pieces, num_stages: int) -> list[list[Partition]]:
    """Place consecutive pairs on each stage, as in the paper."""
    units = pieces.pairs
    cut = balanced_partition([pieces.cost(unit) for unit in units], num_stages)
    return _whole(pieces, units, [cut.stage_of(n) for n in range(len(units))], num_stages)


def packed(pieces: Pieces, num_stages: int) -> list[list[Partition]]:
    return _packed(pieces, pieces.pairs, num_stages)


def free(pieces: Pieces, num_stages: int) -> list[list[Partition]]:
    return _packed(pieces, [[stream] for stream in range(len(pieces.costs))], num_stages)


def _packed(
    pieces: Pieces, units: Sequence[Sequence[int]], num_stages: int
) -> list[list[Partition]]:
    unit_of = {stream: number for number, unit in enumerate(units) for stream in unit}
    links = [
        Link(unit_of[tap.source[0]], unit_of[tap.sink[0]], pieces.output_bytes[tap.source[0]])
        for tap in pieces.wiring.taps
    ]
    stages = pack([pieces.cost(unit) for unit in units], links, num_stages)
    return _whole(pieces, units, stages, num_stages)


def layers(pieces: Pieces, num_stages: int) -> list[list[Partition]]:
    """Place consecutive blocks on each stage: pair after pair, teachers first, cut anywhere."""
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
    """Place consecutive pairs on each group of stages, which share the passes of a step.

    The groups minimize the maximum stage cost (automatic hybrid distribution, section IV-C). A
    group has no more stages than a step has passes.
    """
    units, passes = pieces.pairs, pieces.passes
    costs = [pieces.cost(unit) for unit in units]
    best: dict[tuple[int, int], tuple[float, list[tuple[int, int]]]] = {(0, 0): (0.0, [])}
    for units_done in range(1, len(units) + 1):
        for stages_used in range(1, num_stages + 1):
            ways = [
                (
                    max(before[0], sum(costs[first:units_done]) * _share(size, passes)),
                    [*before[1], (units_done, size)],
                )
                for first in range(units_done)
                for size in range(1, min(stages_used, passes) + 1)
                if (before := best.get((first, stages_used - size)))
            ]
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
    """Place every pair on all stages, which share the passes of a step (internal relaying)."""
    if num_stages > pieces.passes:
        raise ConfigError(
            f"partition shared: expected at most {pieces.passes} stages, one for each pass of a "
            f"step, found {num_stages}; use --set passes=accumulate:{num_stages} or more"
        )
    stages = [number * num_stages // pieces.passes for number in range(pieces.passes)]
    return [[on_one_stage(stage, len(own), num_stages) for stage in stages] for own in pieces.costs]


def _share(size: int, passes: int) -> float:
    """Return the share of a step's passes that the busiest stage of a group computes."""
    bounds = [-(-stage * passes // size) for stage in range(size + 1)]
    return max(high - low for low, high in pairwise(bounds)) / passes


def _whole(
    pieces: Pieces, units: Sequence[Sequence[int]], stages: Sequence[int], num_stages: int
) -> list[list[Partition]]:
    """Place whole streams; each stage has at least one."""
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
    return make_partition((0,) * (stage + 1) + (length,) * (num_stages - stage))


def moved_bytes(partitions: Sequence[Sequence[Partition]], pieces: Pieces) -> int:
    """Return the bytes sent between stages in a step: tapped outputs, each once to each stage."""
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
"""Placements of streams that are placed together, by the names of the setting ``partition``."""


def register_joint_placement(name: str, placement: JointPlacement) -> None:
    JOINT_PLACEMENTS[name] = placement
    if name not in PARTITIONS:
        PARTITIONS.append(name)

"""A partition for every subnet of a stream: balanced, static or rotated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.execution import PARTITIONS
from naspipe.config.ids import Subnet
from naspipe.config.partition import Partition, make_partition
from naspipe.config.rules import Exact
from naspipe.config.steps import ONE_PASS
from naspipe.plan.costs import CostTable
from naspipe.plan.latest_start import CutStream, shortest_ns


def balanced_partition(
    costs: Sequence[float],
    num_stages: int,
    homes: Mapping[int, int] | None = None,
    preferred: Partition | None = None,
    slack: float = 0.0,
    backlog: Sequence[float] = (),
) -> Partition:
    """Cut a chain of block costs into contiguous stages, minimizing the maximum stage cost.

    Dynamic programming over cuts, O(stages * blocks ** 2) in whole arrays. Among equally good
    partitions, the one with the earliest last cut is chosen, then the earliest last but one.

    Args:
        costs: the cost of each block of the chain, 0 or more, in any unit.
        num_stages: number of ranges, with at least one block each.
        homes: blocks that must lie in a given stage's range.
        preferred: the result is the partition nearest to this one, by the sum of the distances of
            its cuts, among those whose peak is at most ``1 + slack`` times the minimum; among
            equally near ones, that with the earliest cuts.
        slack: share of the minimal peak that may be given up to be near ``preferred``.
        backlog: work that each stage has to do already, in the unit of ``costs``, or less than 0
            for spare time; none by default. It counts as part of the stage's cost.

    Raises:
        ConfigError: if there are more stages than blocks, or no partition has these homes.
    """
    num_blocks = len(costs)
    if num_stages > num_blocks:
        raise ConfigError(
            f"{num_stages} stages for {num_blocks} blocks: expected at most one stage per block; "
            f"choose --stages {num_blocks} or less"
        )
    spans = _cut_spans(num_blocks, num_stages, homes or {})
    stages = _stage_costs(costs, spans, backlog or (0,) * num_stages)
    peak, cuts = _least_peak(stages, spans)
    if preferred is not None:
        if (preferred.num_stages, preferred.num_blocks) != (num_stages, num_blocks):
            raise InvariantError(
                f"preferred partition {preferred}: expected {num_stages} stages and {num_blocks} "
                f"blocks"
            )
        if slack < 0:
            raise InvariantError(f"slack of a partition: expected 0 or more, found {slack}")
        limit = max(peak, peak * (1 + slack)) if slack else peak
        cuts = _nearest(stages, spans, limit, preferred.bounds)
    return make_partition((0, *cuts, num_blocks))


_Costs = npt.NDArray[np.float64]


_Span = tuple[int, int]
"""The first and the last position that a cut can have."""


def _cut_spans(num_blocks: int, num_stages: int, homes: Mapping[int, int]) -> list[_Span]:
    """Return the possible positions of each cut, from the chain's beginning (0) to its end.

    First and last positions increase from cut to cut, so that every position of a span is feasible.
    """
    first = [*range(num_stages), num_blocks]
    last = [0, *range(num_blocks - num_stages + 1, num_blocks + 1)]
    blocks, stages = range(num_blocks), range(num_stages)
    is_possible = all(block in blocks and stage in stages for block, stage in homes.items())
    for block, stage in homes.items() if is_possible else ():
        first[stage + 1] = max(first[stage + 1], block + 1)
        last[stage] = min(last[stage], block)
    for cut in range(num_stages):
        first[cut + 1] = max(first[cut + 1], first[cut] + 1)
    for cut in reversed(range(num_stages)):
        last[cut] = min(last[cut], last[cut + 1] - 1)
    spans = list(zip(first, last, strict=True))
    if not is_possible or any(begin > end for begin, end in spans):
        found = [f"block {block} on stage {stage}" for block, stage in sorted(homes.items())]
        raise ConfigError(
            f"{num_stages} stages for {num_blocks} blocks: expected home stages that rise with the "
            f"blocks and leave a block to every stage, found {', '.join(found)}; choose fewer "
            f"stages"
        )
    return spans


def _stage_costs(
    costs: Sequence[float], spans: Sequence[_Span], backlog: Sequence[float]
) -> list[_Costs]:
    """Return, for each stage, its cost from each possible start to each possible stop."""
    sums = np.array([0, *accumulate(costs)], dtype=np.float64)  # exact for integers up to 2 ** 53
    places = np.arange(len(sums))
    whole = np.where(places[:, None] < places, sums - sums[:, None], np.inf)
    return [
        whole[first : last + 1, next_first : next_last + 1] + before
        for (first, last), (next_first, next_last), before in zip(
            spans, spans[1:], backlog, strict=False
        )
    ]


def _least_peak(stages: Sequence[_Costs], spans: Sequence[_Span]) -> tuple[float, list[int]]:
    """Return the minimal peak, and the cuts between stages that attain it."""
    peaks = stages[0][0]
    chosen = []
    for cost in stages[1:]:
        ways = np.maximum(peaks[:, None], cost)
        chosen.append(ways.argmin(axis=0))
        peaks = ways.min(axis=0)
    cuts: list[int] = []
    place = 0
    for starts, (first, _) in zip(reversed(chosen), spans[-2::-1], strict=False):
        place = int(starts[place])
        cuts.append(first + place)
    return float(peaks[0]), cuts[::-1]


def _nearest(
    stages: Sequence[_Costs], spans: Sequence[_Span], limit: float, preferred: Sequence[int]
) -> list[int]:
    """Return the cuts nearest to the preferred ones that keep every stage within the limit."""
    distances = np.zeros(1)
    followers = []
    for cost, (first, last), wanted in zip(
        reversed(stages), spans[-2::-1], preferred[-2::-1], strict=True
    ):
        ways = np.where(cost <= limit, distances, np.inf)
        followers.append(ways.argmin(axis=1))
        distances = np.abs(np.arange(first, last + 1) - wanted) + ways.min(axis=1)
    cuts: list[int] = []
    place = 0
    for follower, (first, _) in zip(reversed(followers), spans[1:-1], strict=False):
        place = int(follower[place])
        cuts.append(first + place)
    return cuts


FEW = 3
"""A number of parts that is tried in addition to one per stage and one per two stages."""

_ACCESSES, _ROUNDS, _WINDOW = 12_800, 3, 64
"""Number of accesses scheduled to choose, rounds of improvement, and subnets under way."""


class RotatedPlacement:
    """Cuts subnets, one at a time in sequence order, minimizing the peak of each subnet on its own.

    Parts with layers that every subnet uses stay where the partition of the mean costs has them;
    the other parts rotate over the other stages. Without such layers, the number of parts is the
    one with the shortest list schedule of the first subnets (:mod:`naspipe.plan.latest_start`).

    Raises:
        ConfigError: if there are more stages than blocks.
    """

    def __init__(
        self,
        subnets: Sequence[Subnet],
        is_shared: Sequence[bool],
        costs: CostTable,
        num_stages: int,
    ) -> None:
        mean = balanced_partition(costs.stream_means_ns(subnets), num_stages)
        self._homes: dict[int, int] = {
            block: mean.stage_of(block) for block, shared in enumerate(is_shared) if shared
        }
        self._turning = sorted(set(range(num_stages)) - set(self._homes.values()))
        self._costs, self._num_stages = costs, num_stages
        self._turn = 0
        self._made: dict[Partition, Partition] = {}
        self._parts = num_stages
        if not self._homes:
            first = max(1, _ACCESSES // (2 * len(is_shared)))
            self._parts = self._fastest([each for each in subnets if each.chain][:first])

    def __call__(self, subnet: Subnet) -> Partition:
        own = self._cut(subnet, self._turn, self._parts)
        self._turn += 1
        return self._made.setdefault(own, own)

    def _cut(self, subnet: Subnet, turn: int, parts: int) -> Partition:
        chain = [self._costs.of(*place).total_ns for place in enumerate(subnet.chain)]
        if parts < self._num_stages:
            return _few_parts(balanced_partition(chain, parts), turn, self._num_stages)
        stages, turning = [*range(self._num_stages)], self._turning
        for place, part in enumerate(turning):
            stages[part] = turning[(place + turn) % len(turning)]
        own = balanced_partition(chain, self._num_stages, self._homes)
        return make_partition(own.bounds, stages)

    def _fastest(self, subnets: Sequence[Subnet]) -> int:
        """Return the fastest number of parts; if several are equally fast, the largest."""

        def takes_ns(parts: int) -> int:
            stream = CutStream(
                subnets=subnets,
                partitions=[self._cut(subnet, turn, parts) for turn, subnet in enumerate(subnets)],
                rules=[Exact()] * len(subnets[0].chain),
                costs=self._costs,
            )
            return shortest_ns([stream], ONE_PASS, _WINDOW, _ROUNDS)

        some = (self._num_stages, -(-self._num_stages // 2), min(FEW, self._num_stages))
        tried = sorted(set(some) - {1}, reverse=True)
        return min(tried, key=takes_ns) if tried else 1


def _few_parts(own: Partition, turn: int, num_stages: int) -> Partition:
    """Spread the parts over the stages as far apart as possible; the other stages get no blocks."""
    parts = own.num_stages
    apart = -(-num_stages // parts)
    if (parts - 1) * apart >= num_stages:
        apart = num_stages // parts
    stages = [(part * apart + turn) % num_stages for part in range(parts)]
    stages += [stage for stage in range(num_stages) if stage not in stages]
    return make_partition(own.bounds + (own.num_blocks,) * (num_stages - parts), stages)


NEAR = 0.01
"""Share of a subnet's minimal peak that is given up to be cut near the other subnets, so that fewer
layers change stages from user to user and have to be mirrored."""


KEPT = 0.97
"""Share of a stage's backlog that is carried over to the next subnet."""

COUNTED = 0.5
"""Share of a stage's backlog that counts as the next subnet's cost there. With all of it, single
subnets are cut so unevenly that those that others wait for take longer. Both were chosen on seeds 0
to 2 with the costs of Table 5, 8 stages: `spaced` and `fair` leave 0.02 to 0.03 less bubble."""


class Partitioner:
    """Cuts subnets, one at a time in sequence order; equal partitions are one object.

    ``static`` uses the partition that balances the mean costs for all subnets. ``balanced``
    minimizes each subnet's own peak, within ``slack``, and stays as near to the static partition as
    that allows; shared layers stay on the stage where the static one has them. The cost of earlier
    subnets on a stage above the mean of all stages is its backlog, which also counts and decays
    over time: whole blocks divide no single subnet evenly, but a stage that got too much of one
    gets less of the next.

    Raises:
        ConfigError: for another kind, or if there are more stages than blocks.
    """

    def __init__(
        self,
        kind: str,
        subnets: Sequence[Subnet],
        is_shared: Sequence[bool],
        costs: CostTable,
        num_stages: int,
        slack: float = NEAR,
    ) -> None:
        if kind not in ("balanced", "static"):
            raise ConfigError(f"partition {kind!r:.80}: expected balanced or static")
        static = balanced_partition(costs.stream_means_ns(subnets), num_stages)
        self._static = static
        self._is_one = kind == "static" or num_stages == 1
        self._homes = {
            block: static.stage_of(block) for block, shared in enumerate(is_shared) if shared
        }
        self._costs = costs
        self._slack = slack
        self._backlog = [0] * num_stages
        self._made = {static: static}

    def __call__(self, subnet: Subnet) -> Partition:
        if self._is_one:
            return self._static
        chain = _block_costs(subnet, self._costs)
        counted = [int(COUNTED * before) for before in self._backlog]
        own = balanced_partition(
            chain, self._static.num_stages, self._homes, self._static, self._slack, counted
        )
        mean = sum(chain) // own.num_stages
        self._backlog = [
            int(KEPT * (before + sum(chain[low:high]) - mean))
            for before, (low, high) in zip(self._backlog, pairwise(own.bounds), strict=True)
        ]
        return self._made.setdefault(own, own)


Cutter = Callable[[Subnet], Partition]
Placement = Callable[[Sequence[Subnet], Sequence[bool], CostTable, int], Cutter]
"""Makes the function that cuts the subnets of one stream; it is called for each, in sequence order.
The arguments are the stream (or a sample of it), whether each block is shared, the costs, and the
number of stages."""

PLACEMENTS: dict[str, Placement] = {
    "balanced": partial(Partitioner, "balanced"),
    "static": partial(Partitioner, "static"),
    "rotated": RotatedPlacement,
}
"""Placements of blocks on stages, by the names of the setting ``partition``."""


def register_placement(name: str, placement: Placement) -> None:
    PLACEMENTS[name] = placement
    if name not in PARTITIONS:
        PARTITIONS.append(name)


def peak_to_mean(
    subnets: Sequence[Subnet], partitions: Sequence[Partition], costs: CostTable
) -> list[float]:
    """Return, for each subnet, the time of its most expensive stage over the mean of its stages.

    1.0 is a perfect balance, the number of stages the worst case.
    """
    ratios: list[float] = []
    for subnet, partition in zip(subnets, partitions, strict=True):
        chain = _block_costs(subnet, costs)
        stages = [sum(chain[low:high]) for low, high in pairwise(partition.bounds)]
        total = sum(stages)
        ratios.append(max(stages) * len(stages) / total if total else 1.0)
    return ratios


def _block_costs(subnet: Subnet, costs: CostTable) -> list[int]:
    """Return the nanoseconds of one pass in each block, without the initialization of the layer."""
    of = costs.of
    return [of(block, candidate).total_ns for block, candidate in enumerate(subnet.chain)]

"""What cuts the subnets of each stream into stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from naspipe.core.config import Execution
from naspipe.core.ids import StageId
from naspipe.core.partition import Partition, make_partition
from naspipe.core.rules import Follows
from naspipe.core.subnet import Subnet
from naspipe.core.wiring import PLAIN, Wiring
from naspipe.planning.cost import CostTable, LayerCost
from naspipe.planning.partitions import PLACEMENTS, Cutter
from naspipe.sim.chains import Stream


def make_cutters(
    streams: Sequence[Stream], execution: Execution, wiring: Wiring = PLAIN
) -> list[Cutter]:
    """Of each stream.

    One that follows another is cut where that is: layers and their sources are on one stage. So is
    one whose wiring says so. Both then have one cut for all subnets, balanced for their costs
    together.
    """
    own = ((number, wiring.of(number).cut_like) for number in range(len(streams)))
    leaders = {number: leader for number, leader in own if leader is not None} | {
        number: rule.stream
        for number, stream in enumerate(streams)
        for rule in stream.chain.rules
        if isinstance(rule, Follows)
    }
    cutters = [
        _cutter(_together(number, streams, leaders), execution, number in leaders.values())
        for number in range(len(streams))
    ]
    cutters = [
        _clipped(cutters[leaders[number]], len(stream.chain.rules))
        if number in leaders
        else cutters[number]
        for number, stream in enumerate(streams)
    ]
    if execution.pipeline.stages > 1 and any(stream.is_whole for stream in streams):
        return _placed_whole(streams, cutters, execution.pipeline.stages)
    return cutters


def _placed_whole(
    streams: Sequence[Stream], cutters: Sequence[Cutter], num_stages: int
) -> list[Cutter]:
    """Streams that are not cut, each on the stage that has least to do, the dearest stream first.

    The others' cuts are kept: what they give each stage counts.
    """
    loads = [0.0] * num_stages
    dear: list[tuple[float, int]] = []
    found = list(cutters)
    for number, stream in enumerate(streams):
        costs = _mean_costs(stream)
        if stream.is_whole:
            dear.append((-sum(costs), number))
            continue
        cut = cutters[number](stream.subnets[0])
        for stage in range(num_stages):
            loads[stage] += sum(costs[block] for block in cut.blocks(StageId(stage)))
    for minus_cost, number in sorted(dear):
        stage = loads.index(min(loads))
        loads[stage] -= minus_cost
        length = len(streams[number].chain.rules)
        bounds = (0,) * (stage + 1) + (length,) * (num_stages - stage)
        found[number] = _always(make_partition(bounds))
    return found


def _mean_costs(stream: Stream) -> list[float]:
    if stream.costs is None:
        return [1.0] * len(stream.chain.rules)
    return stream.costs.stream_means_ns(stream.subnets)


def _always(partition: Partition) -> Cutter:
    return lambda subnet: partition


def _cutter(stream: Stream, execution: Execution, is_followed: bool) -> Cutter:
    if execution.pipeline.stages == 1 or stream.costs is None or stream.is_whole:
        whole = make_partition((0, len(stream.chain.rules)))
        return lambda subnet: whole
    place = PLACEMENTS["static" if is_followed else execution.pipeline.partition]
    return place(stream.subnets, stream.chain.is_shared, stream.costs, execution.pipeline.stages)


def _together(number: int, streams: Sequence[Stream], leaders: Mapping[int, int]) -> Stream:
    """A stream whose layers cost what those that follow them cost, too."""
    stream = streams[number]
    for other, leader in leaders.items():
        follower = streams[other].costs
        if leader == number and stream.costs is not None and follower is not None:
            costs = CostTable(
                {
                    (block, candidate): _sum(cost, follower, block, candidate)
                    for (block, candidate), cost in stream.costs.costs.items()
                }
            )
            stream = replace(stream, costs=costs)
    return stream


def _sum(cost: LayerCost, follower: CostTable, block: int, candidate: int) -> LayerCost:
    if all(block != other for other, _ in follower.costs):
        return cost
    other = follower.of(block, candidate)
    return LayerCost(*(mine + its for mine, its in zip(cost, other, strict=True)))


def _clipped(cutter: Cutter, num_blocks: int) -> Callable[[Subnet], Partition]:
    """The same cuts of another chain; of a shorter one, a stage behind its end has nothing."""
    made: dict[Partition, Partition] = {}

    def cut(subnet: Subnet) -> Partition:
        whole = cutter(subnet)
        if whole not in made:
            inner = (min(bound, num_blocks) for bound in whole.bounds[:-1])
            made[whole] = make_partition((*inner, num_blocks))
        return made[whole]

    return cut

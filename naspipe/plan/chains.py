"""The properties of streams that a schedule depends on, and the partitions of their subnets."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.ids import Subnet
from naspipe.config.partition import Partition, make_partition
from naspipe.config.rules import BlockRule, Follows, rule_with_state, with_stateless
from naspipe.config.space import Space
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.config.wiring import PLAIN, Wiring
from naspipe.engine.history import grouped_cuts
from naspipe.plan.costs import CostTable, LayerCost, first_of_kind
from naspipe.plan.joint_placements import JOINT_PLACEMENTS, Pieces
from naspipe.plan.partitions import PLACEMENTS, Cutter


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The properties of a space that a schedule depends on."""

    rules: tuple[BlockRule, ...]
    is_shared: tuple[bool, ...]
    """For each block, True if every subnet uses its only layer, which therefore stays on its
    stage."""
    buffered: frozenset[tuple[int, int]] | None = None
    """Block and candidate of the layers whose forwards leave buffers for the next one; None for
    all."""
    stateless: frozenset[tuple[int, int]] = frozenset()
    """Block and candidate of the layers without parameters and buffers, which the rules take into
    account."""
    kinds: tuple[int, ...] = ()
    """For each block, the first block with the same candidates; empty if each block has its own."""

    @classmethod
    def of(
        cls,
        space: Space,
        buffered: frozenset[tuple[int, int]] | None = None,
        stateless: frozenset[tuple[int, int]] = frozenset(),
    ) -> Chain:
        counts = [len(block.candidates) for block in space.blocks]
        return cls(
            rules=with_stateless(space.rules, counts, stateless),
            is_shared=space.stays,
            buffered=buffered,
            stateless=stateless,
            kinds=first_of_kind(space),
        )


class _Every:
    def __contains__(self, place: object) -> bool:
        return True


EVERY_OPTION: Container[tuple[int, int]] = _Every()


@dataclass(frozen=True, slots=True)
class Stream:
    """The properties of one stream of a pipeline that its schedule depends on."""

    chain: Chain
    subnets: tuple[Subnet, ...]
    """In sequence order; at least one."""
    costs: CostTable | None
    """None for a single stage without a limit of activations."""
    output_bytes: int = 1
    """Bytes that its last block sends to other streams in a pass, if that matters."""
    is_sample: bool = False
    """True if the subnets only represent others, which are not known yet."""
    split: Container[tuple[int, int]] = frozenset()
    """Pairs of block and option whose backwards are split; ``costs`` take that into account."""

    def splitting(self, dearer: float) -> Stream:
        """Return the same stream with split backwards; see :meth:`Pipeline.splitting`."""
        chosen: Container[tuple[int, int]] = EVERY_OPTION
        if not math.isinf(dearer):
            measured = self.costs.costs if self.costs else {}
            chosen = {place for place, cost in measured.items() if 0 < cost.split_ratio <= dearer}
        return self.split_at(chosen)

    def split_at(self, chosen: Container[tuple[int, int]]) -> Stream:
        return replace(self, costs=self.costs and self.costs.split(chosen), split=chosen)


CutSteps = Callable[[Sequence[Subnet]], tuple[Partition, ...]]


def cut_by_steps(
    streams: Sequence[Stream], execution: Execution, wiring: Wiring, steps: Steps
) -> list[CutSteps]:
    cutters, groups = make_cutters(streams, execution, wiring, steps), execution.pipeline.groups
    if is_joint(execution):
        return [partial(_one_by_one, cutter) for cutter in cutters]
    return [partial(grouped_cuts, cutter=each, steps=steps, groups=groups) for each in cutters]


def _one_by_one(cutter: Cutter, subnets: Sequence[Subnet]) -> tuple[Partition, ...]:
    return tuple(map(cutter, subnets))


def make_cutters(
    streams: Sequence[Stream],
    execution: Execution,
    wiring: Wiring = PLAIN,
    steps: Steps = ONE_PASS,
) -> list[Cutter]:
    """Return the functions that cut the subnets of each stream.

    A joint placement assigns stages to each pass of a step; other placements cut all passes alike.

    A stream that follows another one has the same cuts, because layers and their sources must be on
    one stage; so has a stream whose wiring requires it. Both then have one partition for all
    subnets, balanced for the sum of their costs.
    """
    name, stages = execution.pipeline.partition, execution.pipeline.stages
    if is_joint(execution):
        if (groups := execution.pipeline.groups) > 1:
            raise ConfigError(
                f"partition {name}: expected groups=1, found groups={groups}; hybrid deals passes"
            )
        means = (
            stream.costs.stream_means_ns(stream.subnets)
            if stream.costs
            else [1.0] * len(stream.chain.rules)
            for stream in streams
        )
        outputs = tuple(stream.output_bytes for stream in streams)
        pieces = Pieces(tuple(map(tuple, means)), wiring, outputs, steps.passes)
        return [_by_pass(own, steps) for own in JOINT_PLACEMENTS[name](pieces, stages)]
    leaders = _leaders(streams, wiring)
    cutters = [
        _cutter(_together(number, streams, leaders), execution, number in leaders.values())
        for number in range(len(streams))
    ]
    return [
        _clipped(cutters[leaders[number]], len(stream.chain.rules))
        if number in leaders
        else cutters[number]
        for number, stream in enumerate(streams)
    ]


def are_cut_alike(streams: Sequence[Stream], execution: Execution, wiring: Wiring) -> list[bool]:
    """Return, for each stream, whether future subnets have the same cuts as the known ones."""
    partition = execution.pipeline.partition
    if is_joint(execution) or partition == "static" or execution.pipeline.stages == 1:
        return [True] * len(streams)
    leaders = _leaders(streams, wiring)
    return [number in {*leaders, *leaders.values()} for number in range(len(streams))]


def _leaders(streams: Sequence[Stream], wiring: Wiring) -> dict[int, int]:
    """Return, for each stream that is cut like another one, the number of that one."""
    own = ((number, wiring.of(number).cut_like) for number in range(len(streams)))
    return {number: leader for number, leader in own if leader is not None} | {
        number: rule.stream
        for number, stream in enumerate(streams)
        for rule in map(rule_with_state, stream.chain.rules)
        if isinstance(rule, Follows)
    }


def is_joint(execution: Execution) -> bool:
    """Return True if streams are placed together, so that the stages may depend on the pass."""
    return execution.pipeline.partition in JOINT_PLACEMENTS


def _by_pass(own: Sequence[Partition], steps: Steps) -> Cutter:
    return lambda subnet: own[steps.pass_of(subnet.sequence_id) % len(own)]


def _cutter(stream: Stream, execution: Execution, is_followed: bool) -> Cutter:
    if execution.pipeline.stages == 1 or stream.costs is None:
        whole = make_partition((0, len(stream.chain.rules)))
        return lambda subnet: whole
    place = PLACEMENTS["static" if is_followed else execution.pipeline.partition]
    return place(stream.subnets, stream.chain.is_shared, stream.costs, execution.pipeline.stages)


def _together(number: int, streams: Sequence[Stream], leaders: Mapping[int, int]) -> Stream:
    """Return the stream with the costs of its followers added to its own."""
    stream = streams[number]
    for other, leader in leaders.items():
        follower = streams[other].costs
        if leader == number and stream.costs is not None and follower is not None:
            costs, followed = dict(stream.costs.costs), {block for block, _ in follower.costs}
            for (block, candidate), cost in costs.items():
                if block in followed:
                    pairs = zip(cost, follower.of(block, candidate), strict=True)
                    costs[block, candidate] = LayerCost(*(mine + its for mine, its in pairs))
            stream = replace(stream, costs=CostTable(costs))
    return stream


def _clipped(cutter: Cutter, num_blocks: int) -> Callable[[Subnet], Partition]:
    """Return the same cuts for another chain; stages beyond its end have no blocks."""
    made: dict[Partition, Partition] = {}

    def cut(subnet: Subnet) -> Partition:
        whole = cutter(subnet)
        if whole not in made:
            inner = (min(bound, num_blocks) for bound in whole.bounds[:-1])
            made[whole] = make_partition((*inner, num_blocks), whole.stages)
        return made[whole]

    return cut

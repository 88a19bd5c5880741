"""What all stages know about the subnets of a pipeline from their admissions alone.

``Uses`` lists the users of each layer, ``Whereabouts`` derives where layers, copies, sums and
buffers have to go, and ``participants`` returns the stages that take part in a stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.ids import INITIAL, LayerId, SequenceId, StageId, StreamId, Subnet, Version
from naspipe.config.partition import Partition
from naspipe.config.rules import BlockRule, Exact, Frozen, rule_of
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.config.wiring import Wiring
from naspipe.engine.events import BUFFERS, COPY, LAYER, STATE, SUM, KeptLayer, Parcel
from naspipe.engine.policies import causal_policies, traits_of

_LONG = 64
"""Number of users of a layer that a single reader may leave unread."""


class Uses:
    """The users of every layer of every stream.

    Args:
        is_shared: whether several stages read it. A single reader removes the users that it has
            read, so that memory does not grow with the stream.
    """

    __slots__ = ("_is_shared", "_long", "_next", "_users")

    def __init__(self, is_shared: bool = True) -> None:
        self._is_shared = is_shared
        self._users: dict[LayerId, list[Version]] = {}
        self._next: dict[StreamId, int] = {}
        self._long: list[LayerId] = []

    def note(self, subnet: Subnet, writes: bool = True) -> None:
        """Record a subnet's layers, in sequence order; ignore subnets that are already recorded.

        If the subnet does not write its layers (``writes`` is False), only its sequence ID is
        recorded.
        """
        stream, sequence_id, chain, candidates = subnet
        if sequence_id < self._next.get(stream, 0):
            return
        self._next[stream] = sequence_id + 1
        users, version = self._users, Version(sequence_id)
        for block, candidate in enumerate((candidates or chain) if writes else ()):
            layer = LayerId(stream, block, candidate)
            known = users.get(layer)
            if known is None:
                users[layer] = [version]
            else:
                known.append(version)
                if len(known) == _LONG and not self._is_shared:
                    self._long.append(layer)

    def of(self, layer: LayerId) -> Sequence[Version]:
        """Return the users of a layer, a list that grows. It may include users that the calling
        stage has not admitted yet.
        """
        return self._users.setdefault(layer, [])

    def take(self, layer: LayerId, count: int) -> int:
        """Mark the first users of a layer as read; returns how many of them are still listed."""
        if self._is_shared:
            return count
        del self._users[layer][:count]
        return 0

    def unread(self) -> list[LayerId]:
        """Return the layers with many unread users, which a single reader should read now."""
        long, self._long = self._long, []
        return long


class Departure(NamedTuple):
    """Data that a user of a layer needs on ``stage`` and that this stage has to send.

    For a sum or buffers, ``version`` is the last pass that uses the layer here.
    """

    layer: LayerId
    version: Version
    stage: StageId
    parcel: Parcel = LAYER
    skips_buffers: bool = False


class ExpectedSum(NamedTuple):
    """Gradients of a layer's passes, up to ``version``, that another stage will send."""

    layer: LayerId
    version: Version
    base: Version | None
    """The layer's version from before the step; this stage's own gradients are added to the sum
    after it. None in a tree, where the sum is added whenever it arrives."""


class Preceded(NamedTuple):
    """Other stages compute a layer's passes of a step up to ``version``; this stage computes the
    later ones.
    """

    layer: LayerId
    version: Version
    base: Version | None
    """In a tree, the version from before the step, which this stage's gradients follow instead."""
    has_buffers: bool
    """True if the buffers that the earlier forwards left are sent to this stage."""


class Moves(NamedTuple):
    """What a stage sends and receives for a step, known once all its passes are admitted."""

    departures: list[Departure]
    sums: list[ExpectedSum]
    preceded: list[Preceded]


_NO_MOVES = Moves([], [], [])


class AtCut(NamedTuple):
    """The layers of one stage at a cut, in chain order.

    ``kept`` are the layers of a checkpoint that have not been used since the run was resumed.
    """

    held: list[LayerId]
    kept: list[LayerId]


class Whereabouts:
    """Tracks on which stage every layer is, from the admissions alone.

    Each subnet is followed once, by the first stage that admits it; the stages of one process may
    share an instance.

    Args:
        rules: see :mod:`naspipe.engine`.
        asking: the stages that will query it; nothing is kept for others. None for every stage.
        steps: see :mod:`naspipe.engine`.
        has_buffers: whether forwards through a layer leave buffers for the next one.
    """

    def __init__(
        self,
        rules: Sequence[Sequence[BlockRule]],
        asking: Collection[StageId] | None = None,
        steps: Steps = ONE_PASS,
        has_buffers: Callable[[LayerId], bool] = lambda layer: True,
    ) -> None:
        self._rules = tuple(map(tuple, rules))
        self._asking = asking
        self._steps = steps
        self.has_buffers = has_buffers
        self._newest: dict[LayerId, tuple[Version, StageId]] = {}
        self._next: dict[StreamId, int] = {}
        self._moves: dict[tuple[StreamId, SequenceId, StageId], Moves] = {}
        """Moves that have not been queried yet, by the last pass of their step and the stage that
        they concern."""
        self._users: dict[LayerId, dict[StageId, Version]] = {}
        """For the step that is being followed: the stages that use each layer, and the last pass on
        each."""
        self._frozen: dict[LayerId, StageId] = {}
        self._kept: dict[LayerId, tuple[Version, StageId]] = {}
        self._cuts: dict[tuple[StreamId, SequenceId], dict[StageId, AtCut]] = {}
        """The layers of each stage at a cut, until the stage has queried them; used if several
        stages will."""

    def resume(self, layers: Iterable[KeptLayer]) -> None:
        self._kept |= {layer: (versions[-1], keeper) for layer, versions, keeper in layers}

    def cut(self, stage: StageId, stream: StreamId, cut: SequenceId) -> AtCut:
        """Return the layers that belong to a stage at a cut, before subnet ``cut`` is followed.

        A layer belongs to the stage of its last user; a frozen one, which is never changed, to that
        of its first. Each stage calls this once.
        """
        found = self._cuts.pop((stream, cut), None)
        if found is None:
            found = self._at_cut(stream)
        own = found.pop(stage, AtCut([], []))
        if self._asking is None or len(self._asking) > 1:
            self._cuts[stream, cut] = found
        return own

    def _at_cut(self, stream: StreamId) -> dict[StageId, AtCut]:
        found: dict[StageId, AtCut] = defaultdict(lambda: AtCut([], []))
        used = {layer: stage for layer, (_, stage) in self._newest.items()} | self._frozen
        for layer in sorted(each for each in used if each.stream == stream):
            found[used[layer]].held.append(layer)
        for layer in sorted(each for each in self._kept if each.stream == stream):
            found[self._kept[layer][1]].kept.append(layer)
        return {stage: layers for stage, layers in found.items() if self._asks(stage)}

    def _asks(self, stage: StageId) -> bool:
        return self._asking is None or stage in self._asking

    def admit(self, stage: StageId, subnet: Subnet, partition: Partition) -> Moves:
        """Return what moves for a step, given its last pass; called in sequence order.

        Raises:
            InvariantError: if the subnet moves a layer whose rule is not ``exact``; such layers
                stay on one stage, because readers of several versions share them.
        """
        stream, sequence_id = subnet[:2]
        if sequence_id >= self._next.get(stream, 0):
            self._next[stream] = sequence_id + 1
            self._follow(subnet, partition)
        return self._moves.pop((stream, sequence_id, stage), _NO_MOVES)

    def _follow(self, subnet: Subnet, partition: Partition) -> None:
        stream, sequence_id, chain, candidates = subnet
        chain = candidates or chain
        rules, users, version = self._rules[stream], self._users, Version(sequence_id)
        newest, is_step = self._newest, self._steps.passes == 1
        is_probe = self._steps.is_probe(sequence_id)
        for number in range(0 if is_probe else partition.num_stages):
            stage = StageId(number)
            here = (version, stage)
            for block in partition.blocks(stage):
                layer = LayerId(stream, block, chain[block])
                if is_step and (before := newest.get(layer)) and before[1] == stage:
                    newest[layer] = here  # the most common case: the layer stays
                elif isinstance(rule_of(rules, layer), Frozen):
                    self._kept.pop(layer, None)
                    self._frozen.setdefault(layer, stage)
                elif layer in users:
                    users[layer][stage] = version
                else:
                    users[layer] = {stage: version}
        if self._steps.end(sequence_id) == sequence_id + 1:
            self._users = {}
            for layer, stages in users.items():
                self._move(layer, stages, sequence_id)

    def _move(self, layer: LayerId, users: dict[StageId, Version], last: SequenceId) -> None:
        """Record the moves of a layer for a step; ``users`` are in the order of its passes."""
        stages = list(users)
        owner = stages[-1]
        before = self._newest.get(layer)
        self._newest[layer] = (users[owner], owner)
        base, home = before or (self._kept.pop(layer, (INITIAL, owner))[0], None)
        if len(stages) == 1 and home in (None, owner):
            return
        rule = rule_of(self._rules[layer.stream], layer)
        if home not in (None, owner) and not isinstance(rule, Exact):
            raise InvariantError(
                f"layer {layer}: rule {rule} stays on stage {home}, but subnet "
                f"{layer.stream}.{users[owner]} uses it on stage {owner}"
            )
        has_buffers = len(stages) > 1 and self.has_buffers(layer)
        for place, stage in enumerate(stages):
            if home is not None and stage != home:
                skips_buffers = place > 0 and has_buffers
                moved = STATE if home in stages else LAYER
                parcel = moved if stage == owner else COPY
                self._leave(home, last, Departure(layer, base, stage, parcel, skips_buffers))
        is_tree = self._steps.is_tree
        for stage, following in pairwise(stages):
            version = users[stage]
            if has_buffers:
                self._leave(stage, last, Departure(layer, version, following, BUFFERS))
            if self._asks(following):
                preceded = Preceded(layer, version, base if is_tree else None, has_buffers)
                self._moves_of(layer.stream, last, following).preceded.append(preceded)
        for giver, receiver in self._steps.handed_on(list(users.values())):
            version, taker = users[stages[giver]], stages[receiver]
            self._leave(stages[giver], last, Departure(layer, version, taker, SUM))
            if self._asks(taker):
                expected = ExpectedSum(layer, version, None if is_tree else base)
                self._moves_of(layer.stream, last, taker).sums.append(expected)

    def _leave(self, stage: StageId, last: SequenceId, departure: Departure) -> None:
        if self._asks(stage):
            moves = self._moves_of(departure.layer.stream, last, stage)
            moves.departures.append(departure)

    def _moves_of(self, stream: StreamId, last: SequenceId, stage: StageId) -> Moves:
        return self._moves.setdefault((stream, last, stage), Moves([], [], []))


@dataclass(frozen=True, slots=True)
class History:
    """Records each subnet once per process, in O(blocks), however many stages query it.

    A stage's own process has one; the simulator's stages share one.
    """

    rules: Sequence[Sequence[BlockRule]]
    whereabouts: Whereabouts
    uses: Uses


def check_groups(groups: int, policy: str, steps: Steps) -> None:
    """Raise ConfigError unless each group has a pass of every step."""
    if groups == 1:
        return
    if not traits_of(policy).takes_steps:
        raise ConfigError(
            f"groups={groups}: expected the policy {causal_policies()}, found {policy}, which has "
            f"no steps of several passes"
        )
    if groups > steps.passes:
        raise ConfigError(
            f"groups={groups}: expected a pass of every step for each group, found steps of "
            f"{steps.passes}; use --set passes=accumulate:{groups} or subnets:{groups}, or fewer "
            f"groups"
        )


def grouped_cuts(
    subnets: Sequence[Subnet], cutter: Callable[[Subnet], Partition], steps: Steps, groups: int
) -> tuple[Partition, ...]:
    """Return the partition of each pass, over the stages of all groups.

    All passes of a step are partitioned like its first one, so that no layer moves within a group.
    """
    made: dict[Partition, list[Partition]] = {}
    cuts: list[Partition] = []
    for start in range(0, len(subnets), steps.passes):
        step = subnets[start : start + steps.passes]
        cut = cutter(next(subnet for subnet in step if subnet.chain))
        if cut not in made:
            made[cut] = [cut.in_group(group, groups) for group in range(groups)]
        for number in range(steps.passes):
            own = made[cut][steps.group(number, groups)]
            cuts.append(own if number >= len(step) or step[number].chain else own.without_blocks)
    return tuple(cuts)


def participants(
    partitions: Sequence[Iterable[Partition]], wiring: Wiring, num_stages: int
) -> list[frozenset[StageId]]:
    """Return the stages that take part in each stream.

    A stage takes part if it has blocks of some subnet of the stream. It also takes part if it has
    the tapped block of a subnet that takes the stream's outputs or sends outputs to it; for an
    untrained subnet that sends outputs, any block counts, because checkpoints rely on what is
    logged there.

    Args:
        partitions: for each stream, all partitions of its subnets; empty if unknown, so that every
            stage takes part.
        wiring: how the streams are connected.
        num_stages: number of stages of the pipeline.
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

"""Gates: when the WRITEs of a step may begin, and when its sums may be sent to the next group.

WRITEs that end a step may have to wait until every stage has contributed its part of an exchange. A
sum of gradients is usually sent together with its layer; the other launches exist for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from naspipe.config.errors import InvariantError
from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId, Version
from naspipe.config.partition import Partition
from naspipe.config.steps import Steps
from naspipe.engine.commands import Command, Contribute
from naspipe.engine.events import SUM, ContributionArrived
from naspipe.engine.history import Moves
from naspipe.engine.work import Progress

NORMS = "norms"
"""The exchange of ``clip_global_norm``: the norms of a step's gradients, by layer."""

LAUNCH = "launch"
"""The exchange of sums that are sent at the end: stages only report that they have finished."""


class WriteGate:
    """An additional condition for the WRITEs of a step to begin, or for its sums to be sent.

    A gate waits for the contributions of other stages to an exchange. Several gates may hold a pass
    back: each counts once in ``Progress.holds`` and in ``Progress.unsettled``. By default nothing
    is held back.

    Args:
        steps: how passes form steps.
        exchange: the name of the exchange that stages contribute to.
    """

    def __init__(self, steps: Steps, exchange: str = LAUNCH) -> None:
        self._steps = steps
        self.exchange = exchange

    def admit(self, progress: Progress, moves: Moves) -> None:
        """Register a pass that is under way, even if it has no blocks on this stage.

        Args:
            progress: the progress of the pass.
            moves: with the last pass of a step, what is sent to and received from other stages.
        """

    def joined(self, layer: LayerId, version: Version) -> list[Command]:
        """Process the joining of another group's gradients, up to the pass ``version``."""
        return []

    def finish(self, progress: Progress) -> list[Command]:
        """Process the end of a pass's backwards on this stage."""
        return []

    def arrive(self, event: ContributionArrived) -> list[Progress]:
        """Process a contribution; returns the passes that this gate no longer holds back."""
        raise InvariantError(f"stage {event.sender} reported its end, but no gate waits for it")

    def holds_sum(self, layer: LayerId, version: Version) -> bool:
        """Return True if a layer's gradients, summed up to the pass ``version``, have to stay here.

        The caller asks again when a pass has finished here or is released.
        """
        return False

    def _key(self, stream: StreamId, sequence_id: int) -> tuple[StreamId, SequenceId]:
        """Return the key of a step: its stream and its first pass."""
        return stream, self._steps.first(sequence_id)


@dataclass(slots=True)
class _Step:
    """A step that has not been released yet."""

    members: list[Progress] = field(default_factory=list)
    """Its passes that have blocks on this stage, in sequence order."""
    stages: set[StageId] = field(default_factory=set)
    """The stages that contribute, because they compute a part of the step, in any group."""
    num_open: int = 0
    """Number of passes whose backwards have not finished here, plus sums that have not been
    joined."""
    lent: tuple[LayerId, ...] = ()
    """Layers that this stage uses but another one writes."""
    arrived: set[StageId] = field(default_factory=set)


class StepGate(WriteGate):
    """The WRITEs that end a step wait until every stage has contributed to an exchange.

    A stage contributes when the backwards of its own passes have finished and the gradients of
    earlier groups have been added to theirs. No step waits for a younger one, so the oldest always
    makes progress.
    """

    def __init__(self, steps: Steps, exchange: str = NORMS) -> None:
        super().__init__(steps, exchange)
        self._held: dict[tuple[StreamId, SequenceId], _Step] = {}

    def admit(self, progress: Progress, moves: Moves) -> None:
        """Hold a pass back; it is not retired before it is released."""
        stream, sequence_id = progress.subnet[:2]
        key = self._key(stream, sequence_id)
        step = self._held.setdefault(key, _Step())
        step.stages |= set(contributors(progress.partition))
        if progress.tickets:
            step.members.append(progress)
            step.num_open += 1
            progress.holds += 1
            progress.unsettled += 1
        step.num_open += len(moves.sums)
        step.lent += tuple(each.layer for each in moves.departures if each.parcel == SUM)
        if not step.members and self._steps.end(key[1]) == sequence_id + 1:
            del self._held[key]

    def finish(self, progress: Progress) -> list[Command]:
        return self._close_one(*self._key(*progress.subnet[:2]))

    def joined(self, layer: LayerId, version: Version) -> list[Command]:
        return self._close_one(*self._key(layer.stream, version))

    def _close_one(self, stream: StreamId, first: SequenceId) -> list[Command]:
        step = self._held[stream, first]
        step.num_open -= 1
        if step.num_open:
            return []
        return [Contribute(self.exchange, stream, first, tuple(sorted(step.stages)), step.lent)]

    def arrive(self, event: ContributionArrived) -> list[Progress]:
        key = (event.stream, event.sequence_id)
        step = self._held.get(key)
        if step is None or event.sender in step.arrived:
            raise InvariantError(
                f"{event.stream}.{event.sequence_id}: no gate waits for the {event.exchange} of "
                f"stage {event.sender}"
            )
        step.arrived.add(event.sender)
        if len(step.arrived) < len(step.stages):
            return []
        del self._held[key]
        for progress in step.members:
            progress.holds -= 1
        return step.members


class PartitionLaunch(WriteGate):
    """A sum is sent when its last pass's backward has finished all blocks of the stage.

    It waits for backwards only. No backward needs a sum of its own step, so there is no deadlock.
    No WRITE is held.
    """

    def __init__(self, steps: Steps) -> None:
        super().__init__(steps)
        self._under_way: set[tuple[StreamId, int]] = set()

    def admit(self, progress: Progress, moves: Moves) -> None:
        if progress.tickets:
            self._under_way.add(progress.subnet[:2])

    def finish(self, progress: Progress) -> list[Command]:
        self._under_way.remove(progress.subnet[:2])
        return []

    def holds_sum(self, layer: LayerId, version: Version) -> bool:
        return (layer.stream, version) in self._under_way


class EndLaunch(WriteGate):
    """The sums of a step are sent when all its backwards have finished on every stage of the group.

    Each stage notifies the others of its group. It waits for backwards only, as
    :class:`PartitionLaunch` does. No WRITE is held, but no pass retires before its step's sums are
    released.
    """

    def __init__(self, steps: Steps) -> None:
        super().__init__(steps)
        self._held: dict[tuple[StreamId, SequenceId], _Step] = {}

    def admit(self, progress: Progress, moves: Moves) -> None:
        if progress.tickets:
            step = self._held.setdefault(self._key(*progress.subnet[:2]), _Step())
            step.members.append(progress)
            step.num_open += 1
            step.stages |= set(contributors(progress.partition))
            progress.unsettled += 1

    def finish(self, progress: Progress) -> list[Command]:
        stream, first = self._key(*progress.subnet[:2])
        step = self._held[stream, first]
        step.num_open -= 1
        if step.num_open:
            return []
        return [Contribute(LAUNCH, stream, first, contributors(progress.partition))]

    def arrive(self, event: ContributionArrived) -> list[Progress]:
        key = (event.stream, event.sequence_id)
        step = self._held.get(key)
        if step is None or event.sender not in step.stages - step.arrived:
            raise InvariantError(
                f"{event.stream}.{event.sequence_id}: no gate waits for the end of stage "
                f"{event.sender}"
            )
        step.arrived.add(event.sender)
        if step.stages - step.arrived:
            return []
        del self._held[key]
        return step.members

    def holds_sum(self, layer: LayerId, version: Version) -> bool:
        return self._key(layer.stream, version) in self._held


class Gates:
    """All gates of a stage: a pass is held back if any of them holds it."""

    def __init__(self, gates: Sequence[WriteGate]) -> None:
        self._gates = {gate.exchange: gate for gate in gates}
        self.are_none = not gates
        self._trained: set[StreamId] = set()
        """Streams with WRITEs of their own. A momentum teacher's sums need no gate, because its
        layers follow those of the student, whose WRITEs the gates hold back."""

    def admit(self, progress: Progress, moves: Moves, is_trained: bool) -> None:
        """Register a subnet that is under way; only a trained one has WRITEs."""
        if is_trained:
            self._trained.add(progress.subnet.stream)
            for gate in self._gates.values():
                gate.admit(progress, moves)

    def passed(self, progress: Progress) -> list[Command]:
        return [command for gate in self._gates.values() for command in gate.finish(progress)]

    def joined(self, layer: LayerId, version: Version) -> list[Command]:
        gates = self._gates.values() if layer.stream in self._trained else ()
        return [command for gate in gates for command in gate.joined(layer, version)]

    def hold_sum(self, layer: LayerId, version: Version) -> bool:
        return any(gate.holds_sum(layer, version) for gate in self._gates.values())

    def arrive(self, event: ContributionArrived) -> list[Progress]:
        gate = self._gates.get(event.exchange)
        if gate is None:
            raise InvariantError(
                f"stage {event.sender} contributed to {event.exchange!r:.80}, but the gates here "
                f"are {sorted(self._gates)}"
            )
        return gate.arrive(event)


def contributors(partition: Partition) -> tuple[StageId, ...]:
    """Return the stages that have blocks of a subnet, in their order."""
    stages = (StageId(number) for number in range(partition.num_stages))
    return tuple(stage for stage in stages if partition.blocks(stage))

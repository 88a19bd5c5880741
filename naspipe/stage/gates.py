"""When the WRITEs of a step may begin: when every stage has told what it knows of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from naspipe.core.commands import Command, Contribute
from naspipe.core.errors import InvariantError
from naspipe.core.events import ContributionArrived
from naspipe.core.ids import LayerId, SequenceId, StageId, StreamId, Version
from naspipe.core.partition import Partition
from naspipe.core.steps import Steps
from naspipe.stage.ports import WriteGate
from naspipe.stage.work import Progress

NORMS = "norms"
"""The exchange of ``clip_global_norm``: the norms of a step's gradients, by layer."""


@dataclass(slots=True)
class _Step:
    """One that is not released yet."""

    members: list[Progress] = field(default_factory=list)
    """Its passes that have blocks on this stage, in sequence order."""
    num_open: int = 0
    """Of them those whose backwards are not through, and sums that have not joined."""
    arrived: set[StageId] = field(default_factory=set)
    """Stages whose contributions are here."""


class StepGate:
    """The WRITEs of a step wait until every stage has contributed to an exchange.

    A stage that writes layers of the step contributes when the backwards of its own passes are
    through and those of other groups' passes have been added. Nothing here waits for a younger
    step, so the oldest is never held up.

    Args:
        steps: how passes form steps.
        exchange: what the contributions are to.
    """

    def __init__(self, steps: Steps, exchange: str = NORMS) -> None:
        self._steps = steps
        self._exchange = exchange
        self._held: dict[tuple[StreamId, SequenceId], _Step] = {}

    @property
    def exchange(self) -> str:
        """See :class:`naspipe.stage.ports.WriteGate`."""
        return self._exchange

    def admit(self, progress: Progress, num_sums: int) -> None:
        """Hold a step back, behind its last pass; none of its passes is retired before release."""
        key = self._key(progress)
        step = self._held.setdefault(key, _Step())
        if progress.tickets:
            step.members.append(progress)
        if self._steps.end(key[1]) > progress.subnet.sequence_id + 1:
            return
        if not progress.tickets:  # others write, whatever was computed here
            del self._held[key]
            return
        step.num_open = len(step.members) + num_sums
        for member in step.members:
            member.holds += 1
            member.unsettled += 1

    def finish(self, progress: Progress) -> list[Command]:
        """A pass's backwards are through here: behind the last of its step, contribute."""
        return self._close_one(*self._key(progress))

    def joined(self, layer: LayerId, version: Version) -> list[Command]:
        """The gradients of another group's passes are with this stage's."""
        return self._close_one(layer.stream, self._steps.first(version))

    def _close_one(self, stream: StreamId, first: SequenceId) -> list[Command]:
        step = self._held.get((stream, first))
        if step is None:
            return []
        step.num_open -= 1
        if step.num_open:
            return []
        receivers = contributors(step.members[-1].partition)
        return [Contribute(self._exchange, stream, first, receivers)]

    def arrive(self, event: ContributionArrived) -> list[Progress]:
        """A contribution is here; returns the passes that are released, behind the last one.

        Raises:
            InvariantError: when nobody waits for it.
        """
        key = (event.stream, event.sequence_id)
        step = self._held.get(key)
        if step is None or event.sender in step.arrived:
            raise InvariantError(
                f"{event.stream}.{event.sequence_id}: nobody waits for the {event.exchange} of "
                f"stage {event.sender}"
            )
        step.arrived.add(event.sender)
        if len(step.arrived) < len(contributors(step.members[-1].partition)):
            return []
        del self._held[key]
        for progress in step.members:
            progress.holds -= 1
        return step.members

    def _key(self, progress: Progress) -> tuple[StreamId, SequenceId]:
        stream, sequence_id, _ = progress.subnet
        return stream, self._steps.first(sequence_id)


class Gates:
    """All gates of a stage: whatever one of them holds back is held back.

    Args:
        gates: of different exchanges.
    """

    def __init__(self, gates: Sequence[WriteGate]) -> None:
        self._gates = {gate.exchange: gate for gate in gates}

    def admit(self, progress: Progress, num_sums: int) -> None:
        """A subnet is under way; only one that is trained has WRITEs."""
        for gate in self._gates.values() if progress.is_trained or num_sums else ():
            gate.admit(progress, num_sums)

    def passed(self, progress: Progress) -> list[Command]:
        """A block's backward is over: behind the last one of the subnet, every gate is told."""
        if not self._gates or any(work.todo for work in progress.backwards.values()):
            return []
        return [command for gate in self._gates.values() for command in gate.finish(progress)]

    def joined(self, layer: LayerId, version: Version) -> list[Command]:
        """The gradients of another group's passes, up to ``version``, are with this stage's."""
        return [command for gate in self._gates.values() for command in gate.joined(layer, version)]

    def arrive(self, event: ContributionArrived) -> list[Progress]:
        """See :class:`naspipe.stage.ports.WriteGate`.

        Raises:
            InvariantError: when no gate waits for the exchange.
        """
        gate = self._gates.get(event.exchange)
        if gate is None:
            raise InvariantError(
                f"stage {event.sender} contributed to {event.exchange!r:.80}, but the gates here "
                f"are {sorted(self._gates)}"
            )
        return gate.arrive(event)


def contributors(partition: Partition) -> tuple[StageId, ...]:
    """The stages that have blocks of a subnet, in their order."""
    stages = (StageId(number) for number in range(partition.num_stages))
    return tuple(stage for stage in stages if partition.blocks(stage))

"""When the WRITEs of a step may begin: when every stage has told what it knows of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from naspipe.core.commands import Command, Contribute
from naspipe.core.errors import InvariantError
from naspipe.core.events import ContributionArrived
from naspipe.core.ids import SequenceId, StageId, StreamId
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
    """Its passes, in sequence order."""
    num_finished: int = 0
    """Passes whose backwards are through on this stage."""
    arrived: set[StageId] = field(default_factory=set)
    """Stages whose contributions are here."""


class StepGate:
    """The WRITEs of a step wait until every stage has contributed to an exchange.

    A stage contributes when the backwards of the step's last pass are through. Nothing here waits
    for a younger step, so the oldest is never held up.

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

    def admit(self, progress: Progress) -> None:
        """Hold a pass back; it is not retired before it is released."""
        progress.holds += 1
        progress.unsettled += 1
        self._held.setdefault(self._key(progress), _Step()).members.append(progress)

    def finish(self, progress: Progress) -> list[Command]:
        """A pass's backwards are through here: behind the last of its step, contribute."""
        key = self._key(progress)
        step = self._held[key]
        step.num_finished += 1
        if step.num_finished < self._steps.passes:
            return []
        return [Contribute(self._exchange, *key, contributors(progress.partition))]

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
        if len(step.arrived) < len(contributors(step.members[0].partition)):
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

    def admit(self, progress: Progress) -> None:
        """A subnet is under way; only one that is trained has WRITEs."""
        if progress.is_trained:
            for gate in self._gates.values():
                gate.admit(progress)

    def passed(self, progress: Progress) -> list[Command]:
        """A block's backward is over: behind the last one of the subnet, every gate is told."""
        if not self._gates or any(work.todo for work in progress.backwards.values()):
            return []
        return [command for gate in self._gates.values() for command in gate.finish(progress)]

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

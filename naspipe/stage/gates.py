"""When the WRITEs of a step may begin: at once, or when all of its gradients are there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from naspipe.core.commands import Command, ShareNorms
from naspipe.core.errors import InvariantError
from naspipe.core.events import NormsArrived
from naspipe.core.ids import SequenceId, StreamId
from naspipe.core.steps import Steps
from naspipe.stage.work import Progress


class WriteGate(Protocol):
    """Decides when the WRITEs of a pass may begin, beside the order of WRITEs."""

    def admit(self, progress: Progress) -> None:
        """A pass is under way."""
        ...

    def finish(self, progress: Progress) -> list[Command]:
        """A pass's backward is through on this stage."""
        ...

    def arrive(self, event: NormsArrived) -> list[Progress]:
        """A stage told its norms; returns the passes that are released now."""
        ...


class OpenGate:
    """A WRITE begins as soon as its own gradient is there."""

    def admit(self, progress: Progress) -> None:
        """Nothing is held back."""

    def finish(self, progress: Progress) -> list[Command]:
        """Nobody waits for it."""
        return []

    def arrive(self, event: NormsArrived) -> list[Progress]:
        """Never right without a gate."""
        raise InvariantError(f"{event.stream}.{event.sequence_id}: nobody waits for its norms")


@dataclass(slots=True)
class _Step:
    """One that is not released yet."""

    members: list[Progress] = field(default_factory=list)
    """Its passes, in sequence order."""
    num_finished: int = 0
    """Passes whose backward is through on this stage."""
    num_arrived: int = 0
    """Stages whose norms are here."""


class StepGate:
    """The WRITEs of a step wait until every stage has told the norms of all its gradients.

    A stage tells them when the backward of the step's last pass is through; each works the same
    total out of them. Nothing here waits for a younger step, so the oldest is never held up.

    Args:
        steps: how passes form steps.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._held: dict[tuple[StreamId, SequenceId], _Step] = {}

    def admit(self, progress: Progress) -> None:
        """Hold a pass back; it is not retired before it is released."""
        progress.is_released = False
        progress.unwritten += 1
        self._held.setdefault(self._key(progress), _Step()).members.append(progress)

    def finish(self, progress: Progress) -> list[Command]:
        """A pass's backward is through here: behind the last of its step, tell the norms."""
        key = self._key(progress)
        step = self._held[key]
        step.num_finished += 1
        if step.num_finished < self._steps.passes:
            return []
        return [ShareNorms(*key, progress.partition.num_stages)]

    def arrive(self, event: NormsArrived) -> list[Progress]:
        """A stage's norms are here; returns the passes that are released, behind the last stage.

        Raises:
            InvariantError: when nobody waits for them.
        """
        step = self._held.get((event.stream, event.sequence_id))
        if step is None:
            raise InvariantError(f"{event.stream}.{event.sequence_id}: nobody waits for its norms")
        step.num_arrived += 1
        if step.num_arrived < step.members[0].partition.num_stages:
            return []
        del self._held[event.stream, event.sequence_id]
        for progress in step.members:
            progress.is_released = True
        return step.members

    def _key(self, progress: Progress) -> tuple[StreamId, SequenceId]:
        stream, sequence_id, _ = progress.subnet
        return stream, self._steps.first(sequence_id)

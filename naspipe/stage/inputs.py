"""The named inputs of the tasks on one stage: who waits for which, and who has it by now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from naspipe.config.errors import InvariantError
from naspipe.config.wiring import CHAIN, CREDIT, Wiring, field_input
from naspipe.config.wiring import InputName as InputName
from naspipe.core.commands import RequestField
from naspipe.core.task import Task
from naspipe.stage.clearance import Clearance
from naspipe.stage.taps import Taps
from naspipe.stage.work import Progress, Work


class Inputs:
    """What blocks need beside the versions of their layers: the chain's, taps, late fields.

    Args:
        wiring: how the streams are joined.
        taps: which outputs go to which blocks.
        clearance: knows what each block waits for.
    """

    def __init__(self, wiring: Wiring, taps: Taps, clearance: Clearance) -> None:
        self._wiring = wiring
        self._taps = taps
        self._clearance = clearance

    def admit(self, progress: Progress, blocks: range) -> list[RequestField]:
        """Note what the blocks of a forward wait for; returns what has to be asked for."""
        forward = progress.forward
        for block, name in self._taps.awaited(forward.task, blocks):
            self._clearance.await_input(forward, block, name)
        asked = []
        for block, field in self._wiring.of(progress.subnet.stream).late_fields:
            if block in blocks:
                name = field_input(field)
                if name not in forward.missing:
                    asked.append(RequestField(forward.task, field))
                self._clearance.await_input(forward, block, name)
        return asked

    def arrive(self, progress: Progress, task: Task, name: InputName) -> Iterable[Work]:
        """An input is here; returns the tasks that it may make ready. A credit makes none so.

        Raises:
            InvariantError: when nobody waits for it.
        """
        if name.startswith(CREDIT):
            return ()
        work = progress.work(task)
        if work is None or name not in work.missing:
            there = "no such task" if work is None else ", ".join(sorted(work.missing)) or "nothing"
            raise InvariantError(f"{task}: its input {name} arrived, expected {there}")
        work.missing.remove(name)
        return (work,) if name == CHAIN else self._clearance.arrived(task, name)

    @staticmethod
    def begun(progress: Progress, block: int) -> Iterator[Work]:
        """The backward that begins at a block of this stage, whose forward is through."""
        for backward in progress.backwards.values():
            if backward.begins_here and backward.todo[-1:] == [block]:
                backward.missing.discard(CHAIN)
                yield backward

"""Replaying what a controller was told: the same class gives the same commands again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from naspipe.engine.commands import Command
from naspipe.engine.controller import StageController
from naspipe.engine.events import Event


def replay(controller: StageController, events: Iterable[Event]) -> Iterator[Command]:
    """The commands that a fresh controller gives for recorded events, in order.

    Raises:
        InvariantError: where the events do not fit the controller, as when its rules,
            policy or order are not those of the recorded run.
    """
    for event in events:
        yield from controller.handle(event)

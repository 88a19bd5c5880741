"""A task: one subnet's forward or backward on one stage."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from naspipe.config.errors import ConfigError
from naspipe.config.ids import SequenceId, StageId, StreamId


class TaskKind(Enum):
    """Direction of a task; the value is its letter in logs."""

    FORWARD = "F"
    BACKWARD = "B"


class Task(NamedTuple):
    """One subnet's forward or backward on one stage; prints as ``0.12F@3``, or ``0.12B1@3``.

    The numbers are stream and sequence ID; ``@3`` is the stage. A chain in which losses arise
    before its end has one backward for each; ``B1`` is that of the last one before the end.
    """

    stream: StreamId
    sequence_id: SequenceId
    kind: TaskKind
    stage: StageId
    section: int = 0
    """Of a backward: the part of the chain that it goes through, counted from the chain's end."""

    def at(self, stage: StageId) -> Task:
        """The task of the same pass and direction on another stage."""
        return self._replace(stage=stage)

    def __str__(self) -> str:
        section = self.section or ""
        return f"{self.stream}.{self.sequence_id}{self.kind.value}{section}@{self.stage}"


_TEXT = re.compile(r"([0-9]{1,99})\.([0-9]{1,99})(F|B(?:[1-9][0-9]{0,8})?)@([0-9]{1,99})")


def parse_task(text: str) -> Task:
    """Read a task's text form.

    Raises:
        ConfigError: when the text is not of the form ``0.12F@3``.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ConfigError(f"expected a task such as 0.12F@3, found {text!r}")
    stream, sequence_id, kind, stage = match.groups()
    return Task(
        StreamId(int(stream)),
        SequenceId(int(sequence_id)),
        TaskKind(kind[0]),
        StageId(int(stage)),
        int(kind[1:] or 0),
    )

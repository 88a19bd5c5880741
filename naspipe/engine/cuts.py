"""Checkpoints: a checkpoint is an additional reader of every layer, at a cut through the stream.

The checkpoint at cut n holds every WRITE of the subnets below n and none of the others. Its
position in the stream is between the subnets n - 1 and n, and it reads the versions that any subnet
from n on can request. The pipeline continues meanwhile: a layer is captured before the first
command that would change it (the forward of a later user, because of its buffers; a WRITE of a
layer that is read from copies; a push), and otherwise when the stage is idle. If there was not
enough idle time, the rest is captured a few layers at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId, Version
from naspipe.engine.commands import (
    CaptureLayer,
    Command,
    DropVersion,
    FinishCut,
    PushVersion,
    RetireSubnet,
    RunTask,
    WriteLayer,
)
from naspipe.engine.events import CutAdmitted
from naspipe.engine.history import Whereabouts
from naspipe.engine.versions import VersionBook

_AT_ONCE = 4
"""Maximum number of layers captured with one event, so that no event takes long."""


@dataclass(slots=True, eq=False)
class _Cut:
    stream: StreamId
    cut: SequenceId
    unretired: set[SequenceId]
    patience: int
    """Number of later subnets that may still retire before captures stop waiting for idle time."""
    uncaptured: int = 0


_Capture = tuple[_Cut, tuple[Version, ...]]


class Cuts:
    """The layers of one stage that belong to each checkpoint under way."""

    def __init__(self, stage: StageId, book: VersionBook, whereabouts: Whereabouts) -> None:
        self._stage = stage
        self._book = book
        self._whereabouts = whereabouts
        self._open: list[_Cut] = []
        self._waiting: dict[LayerId, list[_Capture]] = {}
        self._ready: dict[LayerId, list[_Capture]] = {}

    def admit(
        self, event: CutAdmitted, under_way: Iterable[tuple[StreamId, SequenceId]]
    ) -> list[Command]:
        """Insert a cut into the stream, after the subnets that are under way here.

        Returns the captures of layers that have not been used since the run was resumed.
        """
        # Another cut begins: capture everything that is ready, so that captures do not accumulate.
        commands = self._capture_first(len(self._ready)) + self._finish()
        stream, cut = event.stream, event.cut
        earlier = {y for its_stream, y in under_way if its_stream == stream}
        opened = _Cut(stream, cut, earlier, event.patience)
        self._open.append(opened)
        held, kept = self._whereabouts.cut(self._stage, stream, cut)
        for layer in held:
            versions = self._book.hold(layer)
            exists = self._book.exists(layer, versions[-1])
            place = self._ready if exists else self._waiting
            place.setdefault(layer, []).append((opened, versions))
            opened.uncaptured += 1
        return commands + [CaptureLayer(layer, self._book.readable(layer), cut) for layer in kept]

    @property
    def is_idle_work(self) -> bool:
        return bool(self._ready)

    def use_idle_time(self) -> list[Command]:
        return self._capture_first(_AT_ONCE)

    def wrote(self, layer: LayerId, version: Version) -> None:
        """Record an applied WRITE: cuts that wait for this version can capture it."""
        waiting = self._waiting.pop(layer, ())
        for cut, versions in waiting:
            place = self._ready if versions[-1] == version else self._waiting
            place.setdefault(layer, []).append((cut, versions))

    def guard(self, commands: list[Command]) -> list[Command]:
        """Return the commands, each preceded by the captures that would otherwise be too late."""
        if not self._open:
            return commands
        guarded: list[Command] = []
        for command in commands:
            for layer in _changed(command):
                guarded += self._capture(layer)
            if isinstance(command, RetireSubnet):
                for opened in self._open:
                    if opened.stream == command.stream:
                        opened.unretired.discard(command.sequence_id)
                        opened.patience -= command.sequence_id >= opened.cut
            guarded.append(command)
        # True if a cut waits only for captures and its patience is used up.
        is_late = any(not each.unretired and each.patience <= 0 for each in self._open)
        return guarded + self._capture_first(_AT_ONCE if is_late else 0) + self._finish()

    def _capture(self, layer: LayerId) -> list[Command]:
        commands: list[Command] = []
        for opened, versions in self._ready.pop(layer, ()):
            commands.append(CaptureLayer(layer, versions, opened.cut))
            opened.uncaptured -= 1
            for version in versions:
                dropped = self._book.release(layer, version)
                commands += [DropVersion(layer, each) for each in dropped]
        return commands

    def _capture_first(self, count: int) -> list[Command]:
        layers = list(islice(self._ready, count))
        return [command for layer in layers for command in self._capture(layer)]

    def _finish(self) -> list[Command]:
        ended = [each for each in self._open if not each.unretired and each.uncaptured == 0]
        for each in ended:
            self._open.remove(each)
        return [FinishCut(each.stream, each.cut) for each in ended]


def _changed(command: Command) -> list[LayerId]:
    """Return the layers whose bytes a command changes or sends away."""
    match command:
        case RunTask(reads=reads):
            return [layer for layer, _ in reads]
        case WriteLayer() | PushVersion():
            return [command.layer]
    return []

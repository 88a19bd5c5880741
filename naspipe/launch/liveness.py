"""Detection of hung and silent stages by the launcher, based on their heartbeats."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from naspipe.wire.reports import HEARTBEAT_SECONDS, WAITING

_NOTED_SECONDS = 10.0
"""Silence after which a line is printed for the user."""


class Place(NamedTuple):
    """The host of a stage, and its address if there are several hosts."""

    host: str
    address: str = ""

    @property
    def machine(self) -> tuple[str, str]:
        """The host's name, and its address without the port."""
        return self.host, self.address.rpartition(":")[0]

    def of(self, stage: int) -> str:
        """Return a name of the stage and its host; several hosts may share a name."""
        more = f", {self.address}" if self.address else ""
        return f"{'rank' if self.address else 'stage'} {stage} ({self.host}{more})"

    def on(self, stage: int) -> str:
        """Return a name of the host that distinguishes hosts of the same name."""
        return f"{self.host} (rank {stage}, {self.address})" if self.address else self.host


class Problem(NamedTuple):
    """A stage that is considered dead, its task, and the reason."""

    stage: int
    task: str
    why: str
    host: str = ""


class _Beat(NamedTuple):
    heard: float
    doing: str
    since: float


class Liveness:
    """Tracks the last heartbeat of every stage; times are in seconds of one monotonic clock.

    Args:
        stages: the stages that send heartbeats.
        now: the current time.
        silence_seconds: how long a stage may send nothing at all.
        timeout_seconds: how long a block, an update or any other activity except waiting may take.
        places: the place of each stage; empty if all are on this host.
    """

    def __init__(
        self,
        stages: Iterable[int],
        now: float,
        silence_seconds: float,
        timeout_seconds: float,
        places: Sequence[Place] = (),
    ) -> None:
        self.look_seconds = min(HEARTBEAT_SECONDS, silence_seconds / 4)
        """Maximum time between two calls of :meth:`problem`."""
        self._places = tuple(places)
        self._noted: set[int] = set()
        self._silence_seconds = silence_seconds
        self._timeout_seconds = timeout_seconds
        self._beats = {stage: _Beat(now, "start", now) for stage in stages}
        self._looked = now

    def hear(self, stage: int, now: float, doing: str, age: float) -> None:
        """Record a heartbeat: the stage's activity, and its duration in seconds."""
        if stage in self._beats:
            self._beats[stage] = _Beat(now, doing, now - age)
            self._noted.discard(stage)

    def doing(self, stage: int) -> str:
        """Return the last reported activity of a stage; empty after its end."""
        return self._beats[stage].doing if stage in self._beats else ""

    def done(self, stage: int) -> None:
        self._beats.pop(stage, None)

    def problem(self, now: float) -> Problem | None:
        """Return the dead stage, if any: first a silent one, then the one hung for longest.

        Call this every ``look_seconds``. After a longer gap, the caller itself must have been
        stopped, and the gap does not count.
        """
        gap, self._looked = now - self._looked, now
        if gap > self._silence_seconds / 2:
            self._beats = {
                stage: _Beat(beat.heard + gap, beat.doing, beat.since + gap)
                for stage, beat in self._beats.items()
            }
        silent = [
            (beat.heard, stage)
            for stage, beat in self._beats.items()
            if now - beat.heard > self._silence_seconds
        ]
        if silent:
            heard, stage = min(silent)
            why = no_sign_of_life(self._place(stage), self._place(0), now - heard)
            return Problem(stage, self._beats[stage].doing, why, self.host(stage))
        hung = [
            (beat.since, stage)
            for stage, beat in self._beats.items()
            if now - beat.since > self._timeout_seconds and beat.doing != WAITING
        ]
        if not hung:
            return None
        since, stage = min(hung)
        why = f"it has been at this for {now - since:.0f} s (timeout_seconds)"
        return Problem(stage, self._beats[stage].doing, why, self.host(stage))

    def overdue(self, now: float) -> list[str]:
        """Return a line for each silent stage, once until its next heartbeat.

        Call this after :meth:`problem`.
        """
        late = [
            (stage, now - beat.heard)
            for stage, beat in sorted(self._beats.items())
            if now - beat.heard > _NOTED_SECONDS and stage not in self._noted
        ]
        self._noted |= {stage for stage, _ in late}
        return [
            f"waiting {silence:.0f} s for {self._place(stage).of(stage)}, which was at: "
            f"{self._beats[stage].doing}; it is given up after {self._silence_seconds:g} s "
            f"(silence_seconds)"
            for stage, silence in late
        ]

    def host(self, stage: int) -> str:
        return self._place(stage).on(stage)

    def _place(self, stage: int) -> Place:
        return self._places[stage] if self._places else Place(os.uname().nodename)


def no_sign_of_life(there: Place, here: Place, seconds: float) -> str:
    """Explain why a process at one place considers a process at another place dead."""
    causes = "stopped or starved"
    if there.machine != here.machine:
        both = (here.host, there.host)
        if here.host == there.host:
            both = (here.machine[1], there.machine[1])
        causes = f"stopped, starved, or the network between {both[0]} and {both[1]}"
    return f"no sign of life from {there.host} for {seconds:.0f} s: {causes}"

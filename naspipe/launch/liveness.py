"""Which stage is hung or silent: judged by the launcher from the stages' heartbeats."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from naspipe.wire.reports import HEARTBEAT_SECONDS, WAITING

_NOTED_SECONDS = 10.0
"""A silence that whoever watches should know of."""


class Place(NamedTuple):
    """Where a stage is: on a host, at an address of it where there are several."""

    host: str
    address: str = ""

    @property
    def machine(self) -> tuple[str, str]:
        """The host's name, and its address without the port."""
        return self.host, self.address.rpartition(":")[0]

    def of(self, stage: int) -> str:
        """The stage and its host: several may share a name."""
        more = f", {self.address}" if self.address else ""
        return f"{'rank' if self.address else 'stage'} {stage} ({self.host}{more})"

    def on(self, stage: int) -> str:
        """The host, and which of those that share its name."""
        return f"{self.host} (rank {stage}, {self.address})" if self.address else self.host


class Problem(NamedTuple):
    """A stage that is given up, the task it holds, and why."""

    stage: int
    task: str
    why: str
    host: str = ""


class _Beat(NamedTuple):
    heard: float
    doing: str
    since: float


class Liveness:
    """Remembers what every stage was last heard to do; times are seconds of one monotonic clock.

    Args:
        stages: who is to be heard of.
        now: the time.
        silence_seconds: how long a stage may send nothing at all.
        timeout_seconds: how long it may be at one block, WRITE or anything else but waiting.
        places: of each stage; where there are none, they are on this host.
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
        """How long nobody may ask, at most."""
        self._places = tuple(places)
        self._noted: set[int] = set()
        self._silence_seconds = silence_seconds
        self._timeout_seconds = timeout_seconds
        self._beats = {stage: _Beat(now, "start", now) for stage in stages}
        self._looked = now

    def hear(self, stage: int, now: float, doing: str, age: float) -> None:
        """A heartbeat: what the stage is at, and for how many seconds."""
        if stage in self._beats:
            self._beats[stage] = _Beat(now, doing, now - age)
            self._noted.discard(stage)

    def doing(self, stage: int) -> str:
        """What the stage was last heard to do; empty once it has ended."""
        return self._beats[stage].doing if stage in self._beats else ""

    def done(self, stage: int) -> None:
        """The stage has ended as it should."""
        self._beats.pop(stage, None)

    def problem(self, now: float) -> Problem | None:
        """The stage to give up, if there is one: silent ones first, then the longest hung.

        To be asked every ``look_seconds``: where it is not for long, it was the one who asks that
        stood still, and nobody is blamed for that time.
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
        """A line for each stage that has been silent for a while, once until it is heard again.

        To be asked behind :meth:`problem`.
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
        """Where a stage is, in an error."""
        return self._place(stage).on(stage)

    def _place(self, stage: int) -> Place:
        return self._places[stage] if self._places else Place(os.uname().nodename)


def no_sign_of_life(there: Place, here: Place, seconds: float) -> str:
    """Why a process of another host, or of this one, is given up."""
    causes = "stopped or starved"
    if there.machine != here.machine:
        both = (here.host, there.host)
        if here.host == there.host:
            both = (here.machine[1], there.machine[1])
        causes = f"stopped, starved, or the network between {both[0]} and {both[1]}"
    return f"no sign of life from {there.host} for {seconds:.0f} s: {causes}"

"""What one stage knows of one layer's versions: those that exist, and those that are promised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from naspipe.config.ids import INITIAL, Version
from naspipe.config.steps import Steps


@dataclass(slots=True)
class LayerVersions:
    """Kept by :class:`naspipe.schedule.versions.VersionBook`."""

    known: Sequence[Version]
    """Its users, see :class:`naspipe.schedule.uses.Uses`."""
    users: list[Version] = field(default_factory=lambda: [INITIAL])
    """Promised WRITEs that later readers may ask for, oldest first, of each step the last one."""
    existing: set[Version] = field(default_factory=lambda: {INITIAL})
    readers: dict[Version, int] = field(default_factory=dict)
    newest: Version = INITIAL
    seen: int = 0
    """How many of ``known`` were taken over."""
    parts: set[Version] = field(default_factory=set)
    """Promised WRITEs behind which another pass of their step writes too: nobody reads them."""
    num_owed: int = 0
    """WRITEs of this stage that are promised and not applied."""

    def promise(self, writers: Iterable[Version], steps: Steps) -> None:
        """Note that subnets will write it.

        Where this stage owes no WRITE, nobody asks for parts of earlier steps any more.
        """
        if steps.passes == 1:
            self.users.extend(writers)
            return
        if self.parts and not self.num_owed:
            first = steps.first(self.users[-1])
            self.parts = {part for part in self.parts if part >= first or part == self.newest}
        for writer in writers:
            if self.users[-1] >= steps.first(writer):
                self.parts.add(self.users.pop())
            self.users.append(writer)

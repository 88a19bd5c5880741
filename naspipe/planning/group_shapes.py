"""How devices can be shared out: so many groups of so many stages."""

from __future__ import annotations

from typing import NamedTuple

AUTO = "auto"
"""What users write in the place of a number of stages, to have it chosen."""


class Shape(NamedTuple):
    """How many groups of how many stages."""

    groups: int
    stages: int

    @property
    def workers(self) -> int:
        """Stages of all groups."""
        return self.groups * self.stages

    def __str__(self) -> str:
        return f"{self.groups} x {self.stages}" if self.groups > 1 else f"{self.stages}"


def counts(devices: int) -> list[int]:
    """1, 2, 4, ... devices and all."""
    return sorted({devices, *(1 << power for power in range(devices.bit_length()))})


def shapes(devices: int, num_blocks: int, passes: int) -> list[Shape]:
    """Groups and stages on 1, 2, 4, ... devices and on all; each group has a pass of every step.

    Fewer devices first. A group has a block for each of its stages, so some devices may be idle.
    """
    found = [
        Shape(groups, min(count // groups, num_blocks))
        for count in counts(devices)
        for groups in range(1, min(count, passes) + 1)
        if count % groups == 0 and (groups == 1 or count // groups <= num_blocks)
    ]
    return list(dict.fromkeys(found))

"""A subnet with all that every stage is told when it is admitted."""

from __future__ import annotations

from typing import NamedTuple

from naspipe.core.events import Priorities
from naspipe.core.partition import Partition
from naspipe.core.subnet import Subnet


class Planned(NamedTuple):
    """What runs, where each block of it runs, and how urgent each of its accesses is."""

    subnet: Subnet
    partition: Partition
    priorities: Priorities | None = None
    """None where the dispatch order asks for none."""

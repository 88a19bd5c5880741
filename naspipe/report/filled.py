"""How much of the time of split backwards' second part would have been idle without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from naspipe.core.access import Access, AccessKind
from naspipe.report.needs import Needs, Schedule
from naspipe.trace.access.log import time_key

_ALWAYS = -(1 << 63)
"""A time before every record."""


class Filled(NamedTuple):
    """Nanoseconds of all stages that went to gradients of weights that backwards had left (W)."""

    owed_ns: int
    filled_ns: int
    """Those in which no forward or backward of the stage was ready, nor waited for its WRITEs.

    What comes behind the last forward or backward of all stages is not among them.
    """


def filled_time(accesses: Sequence[Access], schedule: Schedule) -> Filled:
    """Sum up a run's W; whatever the log does not tell counts as ready, which fills less.

    Args:
        accesses: a run's log, in any order.
        schedule: what else decided when a record could begin.
    """
    if not any(access.owed_ns for access in accesses):
        return Filled(0, 0)
    needs = Needs(accesses, schedule)
    last_ns = max((a.end_ns for a in accesses if a.kind is not AccessKind.WRITE), default=0)
    owed_ns = filled_ns = 0
    ready_ns: dict[int, int] = {}
    for access in sorted(accesses, key=time_key, reverse=True):
        stage, next_ns = access.stage, ready_ns.get(access.stage, last_ns)
        if access.kind is not AccessKind.WRITE:
            ready_ns[stage] = min(next_ns, _ready_ns(access, needs))
            continue
        owed_ns += access.owed_ns
        filled_ns += max(0, min(access.owed_ns, next_ns - access.start_ns))
    return Filled(owed_ns, filled_ns)


def _ready_ns(access: Access, needs: Needs) -> int:
    """When a forward or a backward had all that it waited for but WRITEs of its own stage."""
    version = needs.version(access)
    found = [
        needs.before(access) or needs.turn(access),
        version if version is not None and version.stage != access.stage else None,
        needs.admission(access), needs.passed(access), needs.taught(access), needs.probed(access),
    ]  # fmt: skip
    return max((each.end_ns for each in found if each is not None), default=_ALWAYS)

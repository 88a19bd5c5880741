"""Find the records of the access log that had to end before another record could start."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from naspipe.config.ids import INITIAL, Access, AccessKind, LayerId
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.report.reductions import Held, Reductions

F, B, W = AccessKind.FORWARD, AccessKind.BACKWARD, AccessKind.WRITE
_Place = tuple[int, int, AccessKind, int]


class Schedule(NamedTuple):
    """Properties of a run, in addition to its log, that determine what records had to wait for.

    Args:
        window: maximum number of subnets in flight.
        bulk: number of subnets that were admitted together (GPipe); 0 for one at a time.
        waits_for_versions: True if a forward waited for the WRITE of the version that it read;
            False if it read the current version.
        is_partly_clear: True if a forward could start before all of its stage's blocks were clear.
        steps: how subnets form steps, and whether a step's WRITEs wait for one another.
        ordered: layers with buffers, which the passes of a step use one after the other.
    """

    window: int
    bulk: int = 0
    waits_for_versions: bool = True
    is_partly_clear: bool = True
    steps: Steps = ONE_PASS
    ordered: frozenset[LayerId] = frozenset()


class Needs:
    """Looks up the records that any record of one log needed.

    ``reductions`` has the sums between groups.
    """

    def __init__(self, accesses: Sequence[Access], schedule: Schedule) -> None:
        self._schedule = schedule
        self._by_place: dict[_Place, Access] = {}
        self._writes: dict[LayerId, dict[int, Access]] = defaultdict(dict)
        self._forwards: dict[tuple[int, int, int], list[Access]] = defaultdict(list)
        self._in_step: dict[tuple[LayerId, int], dict[int, Access]] = defaultdict(dict)
        self.reductions = Reductions(accesses, schedule.steps)
        self._ends: dict[int, int] = defaultdict(int)  # the last block of each stream's chain
        finished: dict[tuple[int, int], dict[int, Access]] = defaultdict(dict)
        for access in accesses:
            stream, block, _ = access.layer
            subnet, stage = access.sequence_id, access.stage
            if access.kind is W:
                self._writes[access.layer][access.version] = access
            else:
                self._by_place[stream, subnet, access.kind, block] = access
            self._ends[stream] = max(self._ends[stream], block)
            if access.kind is F:
                self._forwards[stream, subnet, stage].append(access)
                if access.layer in schedule.ordered:
                    self._in_step[access.layer, schedule.steps.step(subnet)][subnet] = access
            last = finished[stream, stage].get(subnet)
            if last is None or access.end_ns > last.end_ns:
                finished[stream, stage][subnet] = access
        self._versions = {layer: sorted(writes) for layer, writes in self._writes.items()}
        self._finished: dict[tuple[int, int], tuple[list[int], list[Access]]] = {}
        """By stream and stage: sorted subnets, and for each the last record of it or any before."""
        for key, last_of in finished.items():
            subnets = sorted(last_of)
            ends: list[Access] = []
            for number in subnets:
                last = last_of[number]
                ends.append(ends[-1] if ends and ends[-1].end_ns > last.end_ns else last)
            self._finished[key] = subnets, ends

    def before(self, access: Access) -> Access | None:
        """Return the record of the adjacent block whose output this forward or backward takes.

        The result is None at the chain's ends.
        """
        if access.kind is W:
            return None
        stream, block, _ = access.layer
        way = (stream, access.sequence_id, access.kind)
        return self._by_place.get((*way, block - 1 if access.kind is F else block + 1))

    def turn(self, access: Access) -> Access | None:
        """Return the forward that a backward at the chain's end follows, of the same block."""
        stream, block, _ = access.layer
        return (
            self._by_place.get((stream, access.sequence_id, F, block)) if access.kind is B else None
        )

    def sender(self, access: Access) -> Access | None:
        """Return :meth:`before` if it is on another stage, else None."""
        return _from_elsewhere(self.before(access), access)

    def version(self, access: Access) -> Access | None:
        """Return the WRITE of the version that a forward reads, or that precedes a WRITE.

        If the whole task had to be clear, return the last WRITE that any of its forwards reads.
        """
        if not self._schedule.waits_for_versions:
            return None
        if access.kind is F and not self._schedule.is_partly_clear:
            task = (access.layer.stream, access.sequence_id, access.stage)
            writes = [self._write_read(forward) for forward in self._forwards[task]]
            return max(filter(None, writes), key=lambda write: write.end_ns, default=None)
        if access.kind is F:
            return self._write_read(access)
        if access.kind is W:
            versions = self._versions[access.layer]
            place = bisect_left(versions, access.version)
            write = self._writes[access.layer][versions[place - 1]] if place else None
            is_apart = write is not None and self.reductions.are_apart(write, access)
            return None if is_apart else write
        return None

    def passed(self, access: Access) -> Access | None:
        """Return the earlier pass's forward on another stage whose buffers this forward updates."""
        step = self._schedule.steps.step(access.sequence_id)
        passes = self._in_step.get((access.layer, step), {}) if access.kind is F else {}
        before = max((each for each in passes if each < access.sequence_id), default=None)
        return _from_elsewhere(passes[before] if before is not None else None, access)

    def taught(self, access: Access) -> Access | None:
        """Return the first pass's forward on another stage whose output is the soft target."""
        stream, block, _ = access.layer
        steps, is_end = self._schedule.steps, block == self._ends[stream]
        if not steps.distills or access.kind is not F or not is_end:
            return None
        if steps.is_probe(access.sequence_id):
            return None
        first = steps.trained_pass(access.sequence_id, 0)
        return _from_elsewhere(self._by_place.get((stream, first, F, block)), access)

    def probed(self, access: Access) -> Access | None:
        """Return the last probe to end on another stage; it decided a trained pass's subnet."""
        stream, block, _ = access.layer
        steps, sequence_id = self._schedule.steps, access.sequence_id
        if block or access.kind is not F or steps.is_probe(sequence_id):
            return None
        first, end = steps.first(sequence_id), self._ends[stream]
        ends = (self._by_place.get((stream, first + n, F, end)) for n in range(steps.probes))
        found = max(filter(None, ends), key=lambda each: each.end_ns, default=None)
        return _from_elsewhere(found, access)

    def holds(self, access: Access) -> list[Held]:
        """Return the delays of a WRITE after its own gradients were available, in order."""
        return self.reductions.holds(access) if access.kind is W else []

    def admission(self, access: Access) -> Access | None:
        """Return the record on this stage whose end admitted a forward of the first block."""
        if access.kind is not F or access.layer.block:
            return None
        subnets, last = self._finished[access.layer.stream, access.stage]
        bulk, sequence_id = self._schedule.bulk, access.sequence_id
        before = sequence_id - (sequence_id % bulk if bulk else self._schedule.window - 1)
        place = bisect_left(subnets, before)  # all subnets below this number had to finish
        return last[place - 1] if place else None

    def _write_read(self, forward: Access) -> Access | None:
        if forward.version == INITIAL:
            return None
        return self._writes.get(forward.layer, {}).get(forward.version)


def _from_elsewhere(found: Access | None, access: Access) -> Access | None:
    return found if found is not None and found.stage != access.stage else None

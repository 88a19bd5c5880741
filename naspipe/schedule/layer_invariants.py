"""What the accesses of one layer must satisfy, worked out from the stream alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from naspipe.config.ids import INITIAL, Access, AccessKind, LayerId
from naspipe.config.rules import Exact, Frozen, Rule
from naspipe.config.steps import Steps
from naspipe.schedule.traits import traits_of

_LETTERS = (AccessKind.FORWARD, AccessKind.BACKWARD, AccessKind.WRITE)


def layer_violations(
    layer: LayerId,
    rule: Rule,
    users: list[int],
    accesses: Iterable[Access],
    policy: str,
    bulk: int,
    steps: Steps,
    is_ordered: bool,
) -> Iterator[str]:
    """The same of one layer of a stream that is trained, but for what concerns whole steps.

    Args:
        layer: which one.
        rule: its own.
        users: subnets that use it, in sequence order.
        accesses: of the layer.
        policy: see :func:`violations`.
        bulk: see there.
        steps: see there.
        is_ordered: whether passes of a step go through it in their order.
    """
    found: dict[tuple[int, AccessKind], Access] = {}
    for access in accesses:
        if (access.sequence_id, access.kind) in found:
            yield f"{access}: recorded twice"
        found[access.sequence_id, access.kind] = access
    checked = _Layer(layer, rule, users, found, policy, bulk, steps, is_ordered=is_ordered)
    yield from checked.violations()


class _Layer:
    """The accesses of one layer, and who uses it."""

    def __init__(
        self,
        layer: LayerId,
        rule: Rule,
        users: list[int],
        found: dict[tuple[int, AccessKind], Access],
        policy: str,
        bulk: int,
        steps: Steps,
        is_ordered: bool,
    ) -> None:
        self._layer = layer
        self._rule = rule
        self._users = [user for user in users if not steps.is_probe(user)]
        self._probes = [user for user in users if steps.is_probe(user)]
        self._found = found
        self._traits = traits_of(policy)
        self._bulk = bulk
        self._steps = steps
        self._is_ordered = is_ordered

    def violations(self) -> Iterator[str]:
        found, is_written = self._found, not isinstance(self._rule, Frozen)
        kinds = _LETTERS if is_written else _LETTERS[:2]
        expected_of = {(user, kind) for user in self._users for kind in kinds}
        if set(found) != expected_of | {(probe, AccessKind.FORWARD) for probe in self._probes}:
            yield f"layer {self._layer}: accesses are missing or not of this stream"
            return
        for place, user in enumerate(self._users):
            forward, backward = found[user, AccessKind.FORWARD], found[user, AccessKind.BACKWARD]
            expected = self._expected_version(place, user)
            for access in (forward, backward):
                if access.version != expected:
                    yield f"{access}: expected to read version {expected}"
            chain = [forward, backward]
            if is_written:
                write = found[user, AccessKind.WRITE]
                chain.append(write)
                if write.version != user:
                    yield f"{write}: expected to write version {user}"
                read = found.get((expected, AccessKind.WRITE))
                if read is not None and forward.start_ns < read.end_ns:
                    yield f"{forward}: began before version {expected} was written"
            if any(one.end_ns > other.start_ns for one, other in pairwise(chain)):
                yield f"{forward}: its READ, backward and WRITE overlap"
        yield from self._probe_violations()
        if is_written:
            yield from self._write_violations()
        if self._steps.passes > 1 and isinstance(self._rule, Exact):
            yield from self._step_violations()

    def _probe_violations(self) -> Iterator[str]:
        """Forwards of probes read what was there before their step, while it was there."""
        for probe in self._probes:
            forward = self._found[probe, AccessKind.FORWARD]
            place = bisect_left(self._users, probe)
            expected = self._expected_version(place, probe)
            if forward.version != expected:
                yield f"{forward}: expected to read version {expected}"
            read = self._found.get((expected, AccessKind.WRITE))
            if read is not None and forward.start_ns < read.end_ns:
                yield f"{forward}: began before version {expected} was written"
            following = self._users[place : place + 1] if isinstance(self._rule, Exact) else []
            if any(self._found[y, AccessKind.WRITE].start_ns < forward.end_ns for y in following):
                yield f"{forward}: a later WRITE began before it was over"

    def _step_violations(self) -> Iterator[str]:
        """Passes of one step that went through the layer out of order, or read it as it changed."""
        for _, users in groupby(self._users, self._steps.step):
            passes = list(users)
            forwards = [self._found[user, AccessKind.FORWARD] for user in passes]
            for before, forward in pairwise(forwards):
                if self._is_ordered and forward.start_ns < before.end_ns:
                    yield f"{forward}: began before {before}, an earlier pass of its step"
            read_ns: dict[int, int] = defaultdict(int)
            for backward in (self._found[user, AccessKind.BACKWARD] for user in passes):
                read_ns[backward.stage] = max(read_ns[backward.stage], backward.end_ns)
            for write in (self._found[user, AccessKind.WRITE] for user in passes):
                if write.start_ns < read_ns[write.stage]:
                    yield f"{write}: began before every pass of its step was done with the layer"
            if write.start_ns < max(read_ns.values()):
                yield f"{write}: ended its step before every group was done with the layer"

    def _write_violations(self) -> Iterator[str]:
        """WRITEs never overlap, and come in sequence order where the policy says so."""
        writes = [self._found[user, AccessKind.WRITE] for user in self._users]
        if not self._traits.waits_for_versions:
            writes.sort(key=lambda write: (write.start_ns, write.end_ns))
        for before, write in self._in_halves(writes) if self._steps.is_tree else pairwise(writes):
            if write.start_ns < before.end_ns:
                yield f"{write}: began before {before} had ended"

    def _in_halves(self, writes: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
        """WRITEs that follow one another where stages add up apart: the earlier one first."""
        ended: Access | None = None
        for _, of_step in groupby(writes, lambda write: self._steps.step(write.sequence_id)):
            *others, last = of_step
            latest: dict[int, Access] = {}
            for write in (*others, last):
                before = latest.get(write.stage, ended)
                if before is not None:
                    yield before, write
                latest[write.stage] = write
            yield from ((before, last) for before in others)
            ended = last

    def _expected_version(self, place: int, reader: int) -> int:
        if isinstance(self._rule, Frozen):
            return INITIAL
        if not self._traits.waits_for_versions:
            return self._found[reader, AccessKind.FORWARD].version
        if self._traits.has_bulks:
            end = bisect_left(self._users, reader - reader % self._bulk, 0, place)
        else:
            step = self._rule.last_read(self._steps.step(reader))
            end = bisect_right(self._users, step, 0, place, key=self._steps.step)
        return self._users[end - 1] if end else INITIAL

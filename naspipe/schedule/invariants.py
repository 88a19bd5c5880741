"""What every access log must satisfy, worked out from the stream alone.

Nothing here knows the version book: the expected versions come from the definition of the
policy, so a fault in the scheduler cannot hide itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from naspipe.core.access import Access, AccessKind
from naspipe.core.ids import INITIAL, LayerId
from naspipe.core.rules import Exact, Frozen, Lag, Rule
from naspipe.core.steps import ONE_PASS, Steps
from naspipe.core.subnet import Subnet
from naspipe.schedule.traits import traits_of

_LETTERS = (AccessKind.FORWARD, AccessKind.BACKWARD, AccessKind.WRITE)


def violations(
    accesses: Iterable[Access],
    rules: Sequence[Rule],
    subnets: Sequence[Subnet],
    policy: str = "csp",
    bulk: int = 1,
    steps: Steps = ONE_PASS,
    is_trained: bool = True,
    buffered: Collection[LayerId] | None = None,
) -> Iterator[str]:
    """Every way in which a log of one stream differs from what the policy allows, a line each.

    Each user of a layer reads one version, forward and backward: the plain loop's, or with
    ``bsp`` the one from before its bulk, or with ``asp`` any that was there. WRITEs follow one
    another, in sequence order unless ``asp``; a READ begins after the WRITE of its version has
    ended; and under ``csp`` and ``sequential`` the accesses of an ``exact`` layer never overlap.
    Where steps have several passes, those of one step read what was there before it, and the last
    of them WRITEs an ``exact`` layer when all are done with it. They go through it in their order
    on each stage, and through one of ``buffered`` (None for every layer) also from stage to stage.
    Of a stream that is not trained there are forwards only.
    """
    if not is_trained:
        yield from _not_forward(accesses, subnets)
        return
    users: dict[LayerId, list[int]] = defaultdict(list)
    for subnet in subnets:
        for block in range(len(rules)):
            users[subnet.layer(block)].append(subnet.sequence_id)
    found: dict[LayerId, dict[tuple[int, AccessKind], Access]] = defaultdict(dict)
    for access in accesses:
        if (access.sequence_id, access.kind) in found[access.layer]:
            yield f"{access}: recorded twice"
        found[access.layer][access.sequence_id, access.kind] = access
    for layer in sorted(found.keys() | users.keys()):
        of_layer = users.get(layer, []), found.get(layer, {})
        is_ordered = buffered is None or layer in buffered
        checked = _Layer(
            layer, rules[layer.block], *of_layer, policy, bulk, steps, is_ordered=is_ordered
        )
        yield from checked.violations()
    together = [access for accesses in found.values() for access in accesses.values()]
    if steps.distills:
        yield from _untaught(together, len(rules) - 1, steps)
    if steps.is_gated:
        trained = [each for each in together if not isinstance(rules[each.layer.block], Frozen)]
        yield from _written_early(trained, steps)


def _not_forward(accesses: Iterable[Access], subnets: Sequence[Subnet]) -> Iterator[str]:
    """Accesses that are no READ of a first version, and READs that are missing."""
    missing = {
        (LayerId(subnet.stream, block, candidate), subnet.sequence_id)
        for subnet in subnets
        for block, candidate in enumerate(subnet.chain)
    }
    for access in accesses:
        if access.kind is not AccessKind.FORWARD or access.version != INITIAL:
            yield f"{access}: expected forwards of untrained layers only"
        elif (access.layer, access.sequence_id) not in missing:
            yield f"{access}: recorded twice, or not of this stream"
        missing.discard((access.layer, access.sequence_id))
    for layer, sequence_id in sorted(missing):
        yield f"{layer}/{sequence_id}F: missing"


def _untaught(accesses: Iterable[Access], last: int, steps: Steps) -> Iterator[str]:
    """Passes that reached the end of the chain before the one that teaches them."""
    ends = {
        access.sequence_id: access
        for access in accesses
        if access.layer.block == last and access.kind is AccessKind.FORWARD
    }
    for number, access in sorted(ends.items()):
        teacher = ends.get(steps.first(number))
        if teacher is None or (teacher is not access and access.start_ns < teacher.end_ns):
            yield f"{access}: began before its step's first pass had an output"


def _written_early(accesses: Sequence[Access], steps: Steps) -> Iterator[str]:
    """WRITEs that ended a step and began before all gradients of it were there."""
    known: dict[int, int] = {}
    ending: dict[tuple[LayerId, int], Access] = {}
    for access in accesses:
        step = steps.step(access.sequence_id)
        if access.kind is AccessKind.BACKWARD:
            known[step] = max(known.get(step, 0), access.end_ns)
        elif access.kind is AccessKind.WRITE:
            write = ending.setdefault((access.layer, step), access)
            ending[access.layer, step] = max(write, access, key=lambda each: each.sequence_id)
    for (_, step), access in sorted(ending.items()):
        if access.start_ns < known.get(step, 0):
            yield f"{access}: began before all gradients of its step were there"


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
        self._users = users
        self._found = found
        self._traits = traits_of(policy)
        self._bulk = bulk
        self._steps = steps
        self._is_ordered = is_ordered

    def violations(self) -> Iterator[str]:
        found, is_written = self._found, not isinstance(self._rule, Frozen)
        kinds = _LETTERS if is_written else _LETTERS[:2]
        if set(found) != {(user, kind) for user in self._users for kind in kinds}:
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
        if is_written:
            yield from self._write_violations()
        if self._steps.passes > 1 and isinstance(self._rule, Exact):
            yield from self._step_violations()

    def _step_violations(self) -> Iterator[str]:
        """Passes of one step that went through the layer out of order, or read it as it changed."""
        for _, users in groupby(self._users, self._steps.step):
            passes = list(users)
            forwards = [self._found[user, AccessKind.FORWARD] for user in passes]
            for before, forward in pairwise(forwards):
                is_ordered = self._is_ordered or before.stage == forward.stage
                if is_ordered and forward.start_ns < before.end_ns:
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
        for before, write in pairwise(writes):
            if write.start_ns < before.end_ns:
                yield f"{write}: began before {before} had ended"

    def _expected_version(self, place: int, reader: int) -> int:
        earlier = self._users[:place]
        if isinstance(self._rule, Frozen):
            return INITIAL
        if not self._traits.waits_for_versions:
            return self._found[reader, AccessKind.FORWARD].version
        if self._traits.has_bulks:
            first_of_bulk = reader - reader % self._bulk
            return max((user for user in earlier if user < first_of_bulk), default=INITIAL)
        lag = self._rule.subnets if isinstance(self._rule, Lag) else 0
        step = self._steps.step(reader) - 1 - lag
        allowed = (user for user in earlier if self._steps.step(user) <= step)
        return max(allowed, default=INITIAL)

"""The conditions that every access log must satisfy, derived from the stream alone.

Nothing here uses the version book: the expected versions follow from the definition of the policy,
so a bug in the scheduler cannot hide itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from naspipe.config.ids import INITIAL, Access, AccessKind, LayerId, Subnet
from naspipe.config.rules import BlockRule, Exact, Follows, Frozen, Rule, rule_of, untrained
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.engine.policies import PolicyTraits, traits_of

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
    """Yield the :func:`violations` of one layer of a trained stream, except for whole steps."""
    found: dict[tuple[int, AccessKind], Access] = {}
    for access in accesses:
        if (access.sequence_id, access.kind) in found:
            yield f"{access}: recorded twice"
        found[access.sequence_id, access.kind] = access
    trained = [user for user in users if not steps.is_probe(user)]
    probes = [user for user in users if steps.is_probe(user)]
    checked = _Layer(layer, rule, trained, probes, found, traits_of(policy), bulk, steps)
    yield from checked.violations(is_ordered)


@dataclass(slots=True)
class _Layer:
    _layer: LayerId
    _rule: Rule
    _users: list[int]
    _probes: list[int]
    _found: dict[tuple[int, AccessKind], Access]
    _traits: PolicyTraits
    _bulk: int
    _steps: Steps

    def violations(self, is_ordered: bool) -> Iterator[str]:
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
            yield from self._step_violations(is_ordered)

    def _probe_violations(self) -> Iterator[str]:
        """Forwards of probes read the version from before their step, while it exists."""
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

    def _step_violations(self, is_ordered: bool) -> Iterator[str]:
        """Passes of one step that used the layer out of order, or read it while it changed."""
        for _, users in groupby(self._users, self._steps.step):
            passes = list(users)
            forwards = [self._found[user, AccessKind.FORWARD] for user in passes]
            for before, forward in pairwise(forwards):
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
        """WRITEs never overlap, and are applied in sequence order if the policy requires it."""
        writes = [self._found[user, AccessKind.WRITE] for user in self._users]
        if not self._traits.waits_for_versions:
            writes.sort(key=lambda write: (write.start_ns, write.end_ns))
        for before, write in self._in_halves(writes) if self._steps.is_tree else pairwise(writes):
            if write.start_ns < before.end_ns:
                yield f"{write}: began before {before} had ended"

    def _in_halves(self, writes: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
        """Yield pairs of consecutive WRITEs if stages accumulate gradients separately."""
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


_LATE = 1 << 62


def violations(
    accesses: Iterable[Access],
    rules: Sequence[BlockRule],
    subnets: Sequence[Subnet],
    policy: str = "csp",
    bulk: int = 1,
    steps: Steps = ONE_PASS,
    is_trained: bool = True,
    buffered: Collection[LayerId] | None = None,
) -> Iterator[str]:
    """Yield a line for every way in which a log of one stream violates the policy.

    Each user of a layer reads one version in forward and backward: that of the sequential loop, or
    with ``bsp`` the one from before its bulk, or with ``asp`` any existing one. WRITEs follow one
    another, in sequence order unless ``asp``; a READ begins after the WRITE of its version has
    ended; and under ``csp`` and ``sequential`` the accesses of an ``exact`` layer never overlap. If
    steps have several passes, those of one step read the version from before it, and the last of
    them WRITEs an ``exact`` layer when all have finished with it. In a tree of passes, within a
    step only WRITEs of the same stage follow one another, and the last one follows those of all
    stages. Passes use a layer in their order, also across stages, if it is one of ``buffered``
    (None for every layer). Probes and untrained streams have forwards only.
    """
    if not is_trained:
        yield from _not_forward(accesses, rules, subnets, steps)
        return
    users: dict[LayerId, list[int]] = defaultdict(list)
    for subnet in subnets:
        for block in range(len(rules)):
            users[subnet.layer(block)].append(subnet.sequence_id)
    found: dict[LayerId, list[Access]] = defaultdict(list)
    for access in accesses:
        found[access.layer].append(access)
    for layer in sorted(found.keys() | users.keys()):
        of_layer = users.get(layer, []), found.get(layer, [])
        is_ordered = buffered is None or layer in buffered
        yield from layer_violations(
            layer, rule_of(rules, layer), *of_layer, policy, bulk, steps, is_ordered=is_ordered
        )
    together = [access for accesses in found.values() for access in accesses]
    if steps.distills:
        yield from _untaught(together, len(rules) - 1, steps)
    if steps.is_gated:
        trained = [each for each in together if not isinstance(rule_of(rules, each.layer), Frozen)]
        yield from _written_early(trained, steps)


def _not_forward(
    accesses: Iterable[Access], rules: Sequence[BlockRule], subnets: Sequence[Subnet], steps: Steps
) -> Iterator[str]:
    """Yield wrong or missing accesses of a stream that is not trained."""
    expected: dict[tuple[LayerId, int, AccessKind], int] = {}
    users: dict[LayerId, list[int]] = defaultdict(list)
    forward_only = tuple(map(untrained, rules))
    for subnet in subnets:
        number = subnet.sequence_id
        for layer in map(subnet.layer, range(len(subnet.chain))):
            own = rule_of(forward_only, layer)
            last = own.last_read(steps.step(number))
            earlier = (user for user in reversed(users[layer]) if steps.step(user) <= last)
            reads = next(earlier, INITIAL)
            expected[layer, number, AccessKind.FORWARD] = reads
            if not isinstance(own, Frozen):
                users[layer].append(number)
                expected[layer, number, AccessKind.WRITE] = number
    written: dict[tuple[LayerId, int], int] = {}
    for access in sorted(accesses, key=lambda each: each.end_ns):
        key = (access.layer, access.sequence_id, access.kind)
        version = expected.pop(key, None)
        if version is None:
            yield f"{access}: not expected of a stream that is not trained, or recorded twice"
        elif access.version != version:
            yield f"{access}: expected version {version}"
        elif access.kind is AccessKind.WRITE:
            written[access.layer, version] = access.end_ns
        elif version != INITIAL and written.get((access.layer, version), _LATE) > access.start_ns:
            yield f"{access}: began before version {version} was written"
    for layer, sequence_id, kind in sorted(expected):
        yield f"{layer}/{sequence_id} {kind.name.lower()}: missing"


def led(
    source: Iterable[Access], follower: Iterable[Access], rules: Sequence[BlockRule], steps: Steps
) -> Iterator[str]:
    """Yield violations of the rule that WRITEs of source and follower alternate, source first.

    Args:
        source: the log of the stream that is followed, as in its own files.
        follower: the log of the stream that follows.
        rules: the rules of the follower's chain.
        steps: how passes form steps, in both.
    """
    sources, followers = _step_writes(source, steps), _step_writes(follower, steps)
    for layer, writes in sorted(followers.items()):
        rule = rule_of(rules, layer)
        if not isinstance(rule, Follows):
            continue
        led_by = sources.get(LayerId(layer.stream, rule.block, layer.candidate), [])
        ends = ([steps.step(each.sequence_id) for each in found] for found in (led_by, writes))
        if next(ends) != next(ends):
            yield f"layer {layer}: expected the WRITEs of its source, found others"
            continue
        for own, write in zip(led_by, writes, strict=True):
            if own.end_ns > write.start_ns:
                yield f"{write}: expected behind {own} of its source"
        for write, later in zip(writes, led_by[1:], strict=False):
            if later.start_ns < write.end_ns:
                yield f"{write}: expected before {later} of its source"


def _step_writes(accesses: Iterable[Access], steps: Steps) -> dict[LayerId, list[Access]]:
    """Return, for each layer, the WRITEs that ended a step, in their order."""
    last = {
        (access.layer, steps.step(access.sequence_id)): access
        for access in sorted(accesses, key=lambda each: each.sequence_id)
        if access.kind is AccessKind.WRITE
    }
    found: dict[LayerId, list[Access]] = defaultdict(list)
    for (layer, _), access in last.items():
        found[layer].append(access)
    return found


def _untaught(accesses: Iterable[Access], last: int, steps: Steps) -> Iterator[str]:
    """Yield passes that reached the end of the chain before their soft targets existed."""
    ends = {
        access.sequence_id: access
        for access in accesses
        if access.layer.block == last and access.kind is AccessKind.FORWARD
    }
    for number, access in sorted(ends.items()):
        if steps.is_probe(number):
            continue
        teacher = ends.get(steps.trained_pass(number, 0))
        if teacher is None or (teacher is not access and access.start_ns < teacher.end_ns):
            yield f"{access}: began before its step's first pass had an output"


def _written_early(accesses: Sequence[Access], steps: Steps) -> Iterator[str]:
    """Yield WRITEs that ended a step and began before all gradients of it were available."""
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

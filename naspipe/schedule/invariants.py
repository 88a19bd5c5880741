"""What every access log must satisfy, worked out from the stream alone.

Nothing here knows the version book: the expected versions come from the definition of the
policy, so a fault in the scheduler cannot hide itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from naspipe.config.ids import INITIAL, Access, AccessKind, LayerId, Subnet
from naspipe.config.rules import BlockRule, Follows, Frozen, rule_of, untrained
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.schedule.layer_invariants import layer_violations

_LATE = 1 << 62
"""Later than any time, in nanoseconds."""


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
    """Every way in which a log of one stream differs from what the policy allows, a line each.

    Each user of a layer reads one version, forward and backward: the plain loop's, or with
    ``bsp`` the one from before its bulk, or with ``asp`` any that was there. WRITEs follow one
    another, in sequence order unless ``asp``; a READ begins after the WRITE of its version has
    ended; and under ``csp`` and ``sequential`` the accesses of an ``exact`` layer never overlap.
    Where steps have several passes, those of one step read what was there before it, and the last
    of them WRITEs an ``exact`` layer when all are done with it. In a tree of passes only WRITEs of
    one stage follow one another within a step, and the last one those of all stages. Passes go
    through a layer in their order where it is one of ``buffered`` (None for every layer), also from
    stage to stage. Of probes, and of a stream that is not trained, there are forwards only.
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
    """READs of another version than the stream says, WRITEs of what follows nothing, and gaps."""
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
    """Ways in which layers did not follow their sources: WRITEs of both alternate, source first.

    Args:
        source: the log of the stream that is followed, as in its own files.
        follower: that of the one that follows.
        rules: of the follower's chain.
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
    """Of each layer, the WRITEs that ended a step, in their order."""
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
    """Passes that reached the end of the chain before the one that teaches them."""
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

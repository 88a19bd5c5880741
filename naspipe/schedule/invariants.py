"""What every access log must satisfy, worked out from the stream alone.

Nothing here knows the version book: the expected versions come from the definition of the
plain loop, so a fault in the scheduler cannot hide itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from naspipe.core.access import Access, AccessKind
from naspipe.core.ids import INITIAL, LayerId
from naspipe.core.rules import Exact, Frozen, Lag, Rule
from naspipe.core.subnet import Subnet

_LETTERS = (AccessKind.FORWARD, AccessKind.BACKWARD, AccessKind.WRITE)


def violations(
    accesses: Iterable[Access], rules: Sequence[Rule], subnets: Sequence[Subnet]
) -> Iterator[str]:
    """Every way in which a log differs from the sequential order, as one line each.

    Each user of a layer reads the version the plain loop would read, once forward and once
    backward; WRITEs follow one another in sequence order; a READ begins after the WRITE of
    its version has ended; and the accesses of an ``exact`` layer never overlap.
    """
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
        rule = rules[layer.block]
        yield from _layer_violations(layer, rule, users.get(layer, []), found.get(layer, {}))


def _layer_violations(
    layer: LayerId, rule: Rule, users: list[int], found: dict[tuple[int, AccessKind], Access]
) -> Iterator[str]:
    kinds = _LETTERS[:2] if isinstance(rule, Frozen) else _LETTERS
    if set(found) != {(user, kind) for user in users for kind in kinds}:
        yield f"layer {layer}: accesses are missing or not of this stream"
        return
    previous: Access | None = None
    for place, user in enumerate(users):
        expected = _expected_version(rule, users[:place], user)
        forward, backward = found[user, AccessKind.FORWARD], found[user, AccessKind.BACKWARD]
        for access in (forward, backward):
            if access.version != expected:
                yield f"{access}: expected to read version {expected}"
        chain = [forward, backward]
        if not isinstance(rule, Frozen):
            write = found[user, AccessKind.WRITE]
            chain.append(write)
            if write.version != user:
                yield f"{write}: expected to write version {user}"
            if previous is not None and write.start_ns < previous.end_ns:
                yield f"{write}: began before {previous} had ended"
            if expected != INITIAL and forward.start_ns < found[expected, AccessKind.WRITE].end_ns:
                yield f"{forward}: began before version {expected} was written"
            previous = write
        if any(one.end_ns > other.start_ns for one, other in pairwise(chain)):
            yield f"{forward}: its READ, backward and WRITE overlap"


def _expected_version(rule: Rule, earlier: Sequence[int], reader: int) -> int:
    match rule:
        case Exact():
            return earlier[-1] if earlier else INITIAL
        case Frozen():
            return INITIAL
        case Lag(subnets):
            return max((user for user in earlier if user <= reader - 1 - subnets), default=INITIAL)

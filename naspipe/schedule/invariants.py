"""What every access log must satisfy, worked out from the stream alone.

Nothing here knows the version book: the expected versions come from the definition of the
policy, so a fault in the scheduler cannot hide itself.
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
    accesses: Iterable[Access],
    rules: Sequence[Rule],
    subnets: Sequence[Subnet],
    policy: str = "csp",
    bulk: int = 1,
) -> Iterator[str]:
    """Every way in which a log of one stream differs from what the policy allows, a line each.

    Each user of a layer reads one version, forward and backward: the plain loop's, or with
    ``bsp`` the one from before its bulk, or with ``asp`` any that was there. WRITEs follow one
    another, in sequence order unless ``asp``; a READ begins after the WRITE of its version has
    ended; and under ``csp`` and ``sequential`` the accesses of an ``exact`` layer never overlap.
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
        yield from _Layer(
            layer, rules[layer.block], users.get(layer, []), found.get(layer, {}), policy, bulk
        ).violations()


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
    ) -> None:
        self._layer = layer
        self._rule = rule
        self._users = users
        self._found = found
        self._policy = policy
        self._bulk = bulk

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

    def _write_violations(self) -> Iterator[str]:
        """WRITEs never overlap, and come in sequence order where the policy says so."""
        writes = [self._found[user, AccessKind.WRITE] for user in self._users]
        if self._policy == "asp":
            writes.sort(key=lambda write: (write.start_ns, write.end_ns))
        for before, write in pairwise(writes):
            if write.start_ns < before.end_ns:
                yield f"{write}: began before {before} had ended"

    def _expected_version(self, place: int, reader: int) -> int:
        earlier = self._users[:place]
        if isinstance(self._rule, Frozen):
            return INITIAL
        if self._policy == "asp":
            return self._found[reader, AccessKind.FORWARD].version
        if self._policy == "bsp":
            first_of_bulk = reader - reader % self._bulk
            return max((user for user in earlier if user < first_of_bulk), default=INITIAL)
        match self._rule:
            case Lag(subnets):
                allowed = (user for user in earlier if user <= reader - 1 - subnets)
                return max(allowed, default=INITIAL)
            case Exact():
                return earlier[-1] if earlier else INITIAL

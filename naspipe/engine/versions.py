"""The version book of one stage: which subnets read and write which version of each layer.

Theory of operation
-------------------

A *version* of a layer is named by the sequence ID of the subnet whose update made it. When a subnet
is admitted, each of its layers gets a *ticket*: the version that the subnet reads, and the version
that its update builds on. Admissions have no gaps, so all earlier users of the layer are known
then, and the rule of the layer determines the ticket: ``exact`` reads the version of the previous
user, ``lag(K)`` that of K steps earlier, ``frozen`` the first one. A ticket is clear when the
version that it reads exists on this stage.

**States of a version.** It is *promised* when its writer is admitted, it *exists* from the update
(``write``) or from its arrival from another stage (``arrive``) on, and it is *dropped* when no
admitted subnet reads it and no later one can request it (``_floor``). Readers are counted: a ticket
is a reader until its last use of the layer is over. With several passes per step, the updates of a
step's earlier passes only accumulate gradients. These versions (``parts``) are links in the order
of updates, and are never read.

**Invariants.**

- An update follows the newest version, which must be the base of its ticket; anything else raises
  ``InvariantError``.
- The newest version is overwritten only if it has no readers, or if readers of older versions have
  copies (``may_replace``).
- A layer has one home. When it moves, the version that arrives is newer than any on this stage.

**Why this way.** Waiting for one version is enough to respect every dependency of the layer,
because the version itself can only exist after all earlier updates. So a subnet never has to be
compared with the others under way, and the cost of admitting one does not depend on their number.
Policies that are not causal (``bsp``, ``asp``) use the same book. ``asp`` binds a ticket only when
the forward begins (``LATEST``).

**What was tried and rejected.** A lock per layer serialises the readers of one version, which may
run at the same time. A version counter instead of sequence IDs cannot name a version whose writer
has not been admitted on this stage yet, such as a layer that arrives from another one.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from naspipe.config.errors import InvariantError
from naspipe.config.ids import INITIAL, LATEST, LayerId, SequenceId, StreamId, Subnet, Version
from naspipe.config.rules import BlockRule, Rule, rule_of
from naspipe.engine.events import KeptLayer
from naspipe.engine.history import Uses
from naspipe.engine.policies import SyncPolicy


@dataclass(slots=True)
class LayerVersions:
    """The versions of one layer, kept by :class:`VersionBook`."""

    known: Sequence[Version]
    users: list[Version] = field(default_factory=lambda: [INITIAL])
    """Promised WRITEs that later readers may request, oldest first; only the last one of each
    step."""
    existing: set[Version] = field(default_factory=lambda: {INITIAL})
    readers: dict[Version, int] = field(default_factory=dict)
    newest: Version = INITIAL
    seen: int = 0
    """Number of entries of ``known`` that have been processed."""
    parts: set[Version] = field(default_factory=set)
    """Promised WRITEs that are followed by another pass of their step and are therefore never
    read."""
    num_owed: int = 0
    """WRITEs of this stage that are promised and not yet applied."""


_NEVER = Version(sys.maxsize)


class Ticket(NamedTuple):
    """What one subnet may do with one layer: read ``reads``, then write on top of ``base``.

    Both are LATEST until they are known if the policy binds late.
    """

    layer: LayerId
    reads: Version
    base: Version
    is_writer: bool


class VersionBook:
    """Versions of the layers of one stage, under one synchronisation policy."""

    def __init__(
        self, rules: Sequence[Sequence[BlockRule]], policy: SyncPolicy, uses: Uses | None = None
    ) -> None:
        self.rules = tuple(map(tuple, rules))
        self._policy = policy
        self._uses = uses if uses is not None else Uses(is_shared=False)
        self._layers: dict[LayerId, LayerVersions] = {}
        self._next: dict[StreamId, int] = {}

    def resume(self, stream: StreamId, first: SequenceId, layers: Iterable[KeptLayer]) -> None:
        """Continue from a checkpoint: its versions exist here, and subnet ``first`` is the next."""
        self._next[stream] = first
        for layer, versions, _ in layers:
            known = self._uses.of(layer)
            self._layers[layer] = LayerVersions(
                known, list(versions), set(versions), {}, versions[-1]
            )

    def admit(self, subnet: Subnet, blocks: Iterable[int]) -> dict[int, Ticket]:
        """Issue the tickets of a subnet for this stage's blocks.

        Its other layers are recorded too, because a layer that it writes elsewhere may move here
        next.

        Raises:
            InvariantError: if a sequence ID is missing or repeated; otherwise "no earlier writer"
                could not be known.
        """
        expected = self._next.get(subnet.stream, 0)
        if subnet.sequence_id != expected:
            raise InvariantError(
                f"subnet {subnet.stream}.{subnet.sequence_id} admitted out of order: "
                f"expected sequence ID {expected}"
            )
        if self._policy.binds_late:
            self._next[subnet.stream] = expected + 1
            layers = {block: subnet.layer(block) for block in blocks}
            return {
                block: Ticket(layer, LATEST, LATEST, self._policy.is_writer(self.rule(layer)))
                for block, layer in layers.items()
            }
        is_probe = self._policy.steps.is_probe(subnet.sequence_id)
        self._uses.note(subnet, writes=not is_probe)
        tickets = {}
        for block in blocks:
            layer = subnet.layer(block)
            state, rule = self._state(layer), self.rule(layer)
            is_writer = self._policy.is_writer(rule) and not is_probe
            state.num_owed += is_writer
            reads = self._policy.version_to_read(rule, state.users, subnet.sequence_id)
            state.readers[reads] = state.readers.get(reads, 0) + 1
            tickets[block] = Ticket(layer, reads, state.users[-1], is_writer)
        self._next[subnet.stream] = expected + 1
        for layer in self._uses.unread():
            self._state(layer)
        return tickets

    def is_admitted(self, stream: StreamId, sequence_id: int) -> bool:
        return sequence_id < self._next.get(stream, 0)

    def begin(self, tickets: dict[int, Ticket]) -> None:
        """Fill in what a beginning forward reads, if the policy binds late."""
        if not self._policy.binds_late:
            return
        for block, ticket in tickets.items():
            if ticket.reads == LATEST:
                state = self._state(ticket.layer)
                state.readers[state.newest] = state.readers.get(state.newest, 0) + 1
                tickets[block] = ticket._replace(reads=state.newest)

    def queue_write(self, ticket: Ticket, writer: SequenceId) -> Ticket:
        """Fill in which version the WRITE of a new gradient follows, if the policy binds late."""
        if ticket.base != LATEST:
            return ticket
        state = self._state(ticket.layer)
        ticket = ticket._replace(base=state.users[-1])
        self._promise(ticket.layer, state, (Version(writer),))
        return ticket

    def is_clear(self, ticket: Ticket) -> bool:
        return ticket.reads == LATEST or self.exists(ticket.layer, ticket.reads)

    def exists(self, layer: LayerId, version: Version) -> bool:
        return version in self._state(layer).existing

    def newest(self, layer: LayerId) -> Version:
        return self._state(layer).newest

    def may_replace(self, layer: LayerId) -> bool:
        """Return True if the newest version may be overwritten: it is copied or has no readers."""
        state = self._state(layer)
        return self.has_copies(layer) or not state.readers.get(state.newest)

    def has_copies(self, layer: LayerId) -> bool:
        """Return True if a layer's older versions are read from copies."""
        return self._policy.keeps_versions(self.rule(layer))

    def ends_step(self, layer: LayerId, version: Version) -> bool:
        """Return True if a WRITE is the last of its step, whose passes must all be admitted."""
        return version not in self._state(layer).parts

    def keeps(self, layer: LayerId, version: Version) -> bool:
        """Return True if a version will be read again, by an admitted subnet or by a later one."""
        state = self._state(layer)
        is_known = version >= self._floor(layer, state) and version not in state.parts
        is_made = self._policy.makes_version(self.rule(layer), version)
        return (is_known and is_made) or state.readers.get(version, 0) > 0

    def readable(self, layer: LayerId) -> tuple[Version, ...]:
        """Return the newest version and those that later subnets can request, oldest first."""
        state, rule = self._state(layer), self.rule(layer)
        floor, newest = self._floor(layer, state), state.users[-1]
        known = (version for version in state.users if version >= floor)
        return tuple(v for v in known if v == newest or self._policy.makes_version(rule, v))

    def hold(self, layer: LayerId) -> tuple[Version, ...]:
        """Add a reader to every readable version, until it is released; returns these versions."""
        versions = self.readable(layer)
        readers = self._state(layer).readers
        for version in versions:
            readers[version] = readers.get(version, 0) + 1
        return versions

    def release(self, layer: LayerId, version: Version) -> list[Version]:
        """Remove one reader of a version; returns the versions that will not be read again."""
        state = self._state(layer)
        left = state.readers.get(version, 0) - 1
        if left < 0:
            raise InvariantError(f"layer {layer}: version {version} released more than read")
        if left:
            state.readers[version] = left
            return []
        del state.readers[version]
        return self._drop(layer, state)

    def write(self, layer: LayerId, ticket: Ticket, version: Version) -> list[Version]:
        """Record an applied WRITE; returns the versions that will not be read again."""
        state = self._state(layer)
        if state.newest != ticket.base:
            raise InvariantError(
                f"layer {layer}: WRITE {version} was to follow version {ticket.base}, "
                f"found version {state.newest}"
            )
        state.newest = version
        state.num_owed -= 1
        state.existing.add(version)
        if state.parts and version not in state.parts:
            state.parts = {part for part in state.parts if part > version}
        return self._drop(layer, state)

    def arrive(self, layer: LayerId, version: Version) -> None:
        """Record the newest version, sent by another stage; what was here before is stale.

        Older versions of a layer with copies can still be read.
        """
        state = self._state(layer)
        if version <= state.newest or not self.may_replace(layer):
            raise InvariantError(
                f"layer {layer}: version {version} arrived, found version {state.newest} with "
                f"{state.readers.get(state.newest, 0)} readers"
            )
        if not self.has_copies(layer):
            state.existing.clear()
        elif state.newest in state.parts:
            state.existing.remove(state.newest)
        state.newest = version
        state.existing.add(version)
        state.parts = {part for part in state.parts if part > version}

    def join(self, layer: LayerId, base: Version, version: Version) -> list[Version] | None:
        """Put the gradients of other stages' passes, up to ``version``, before those of this stage.

        Returns the versions that will not be read again; None if it is too early, because ``base``,
        the version from before the step, is not here or is still read.
        """
        state = self._state(layer)
        if state.newest != base or not self.may_replace(layer):
            return None
        state.newest = version
        state.existing.add(version)
        return self._drop(layer, state)

    def _promise(self, layer: LayerId, state: LayerVersions, writers: Iterable[Version]) -> None:
        if not self._policy.is_writer(self.rule(layer)):
            return
        steps, users = self._policy.steps, state.users
        if steps.passes == 1:
            users.extend(writers)
        else:
            if state.parts and not state.num_owed:  # parts of earlier steps are no longer needed
                first = steps.first(users[-1])
                state.parts = {p for p in state.parts if p >= first or p == state.newest}
            for writer in writers:
                if users[-1] >= steps.first(writer):
                    state.parts.add(users.pop())
                users.append(writer)
        oldest = self._floor(layer, state)
        del users[: min(bisect_left(users, oldest), len(users) - 1)]

    def _state(self, layer: LayerId) -> LayerVersions:
        """Return a layer's state, which includes every use by a subnet that was admitted here."""
        state = self._layers.get(layer)
        if state is None:
            state = self._layers[layer] = LayerVersions(self._uses.of(layer))
        known, seen = state.known, state.seen
        if len(known) > seen:
            admitted = self._next.get(layer.stream, 0)
            stop = bisect_left(known, admitted, seen)
            if stop > seen:
                self._promise(layer, state, known[seen:stop])
                state.seen = self._uses.take(layer, stop)
        return state

    def _floor(self, layer: LayerId, state: LayerVersions) -> Version:
        """Return the oldest version that a subnet not yet admitted can request."""
        reader = SequenceId(self._next.get(layer.stream, 0))
        version = self._policy.version_to_read(self.rule(layer), state.users, reader)
        return _NEVER if version == LATEST else version

    def rule(self, layer: LayerId) -> Rule:
        return rule_of(self.rules[layer.stream], layer)

    def _drop(self, layer: LayerId, state: LayerVersions) -> list[Version]:
        if len(state.existing) == 1:
            return []
        floor, rule = self._floor(layer, state), self.rule(layer)
        unread = (v for v in sorted(state.existing - {state.newest}) if not state.readers.get(v))
        dropped = [v for v in unread if v < floor or not self._policy.makes_version(rule, v)]
        state.existing.difference_update(dropped)
        return dropped

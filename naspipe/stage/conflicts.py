"""Which subnets are held up on other stages, as far as a stage can tell.

A subnet that uses a layer waits for the WRITE of the layer's user before it. A stage is told
every subnet's choices, and sees each subnet come back and retire; so it knows which subnets may
still have to wait, and for whom, on the stages before it and on those behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from naspipe.config.ids import LayerId, SequenceId, StreamId, Subnet
from naspipe.config.rules import BlockRule, Exact, rule_of

_Key = tuple[StreamId, SequenceId]


class Conflicts:
    """The subnets under way on a stage, and those that they wait for elsewhere.

    Args:
        rules: of each stream, the rule of each block of its chain; only ``exact`` layers make
            anyone wait here.
    """

    def __init__(self, rules: Sequence[Sequence[BlockRule]]) -> None:
        self._rules = rules
        self._users: dict[LayerId, _Key] = {}
        self._before, self._behind = _Waits(), _Waits()

    def admit(self, subnet: Subnet, here: range) -> None:
        """Note whom a subnet waits for outside of the blocks that it has on this stage.

        Told in sequence order without gaps.
        """
        before: set[_Key] = set()
        behind: set[_Key] = set()
        key = (subnet.stream, subnet.sequence_id)
        rules = self._rules[subnet.stream]
        for block in range(len(subnet.chain)):
            layer = subnet.layer(block)
            if not isinstance(rule_of(rules, layer), Exact):
                continue
            user = self._users.get(layer)
            self._users[layer] = key
            if user is not None and block < here.start:
                before.add(user)
            elif user is not None and block >= here.stop:
                behind.add(user)
        self._before.admit(key, before)
        self._behind.admit(key, behind)

    def come_back(self, stream: StreamId, sequence_id: SequenceId) -> None:
        """A subnet's backward arrived: the stages behind are done with it."""
        self._behind.end((stream, sequence_id))

    def retire(self, stream: StreamId, sequence_id: SequenceId) -> None:
        """This stage is done with a subnet; those before it are taken to be so soon."""
        self._behind.end((stream, sequence_id))
        self._before.end((stream, sequence_id))

    def is_before(self, stream: StreamId, sequence_id: SequenceId) -> bool:
        """Whether a subnet waits for another on the stages before this one."""
        return self._before.is_waiting((stream, sequence_id))

    def is_behind(self, stream: StreamId, sequence_id: SequenceId) -> bool:
        """Whether a subnet waits for another on the stages behind this one."""
        return self._behind.is_waiting((stream, sequence_id))


class _Waits:
    """Who waits for whom on one side of a stage."""

    def __init__(self) -> None:
        self._followers: dict[_Key, list[_Key]] = {}
        """Of every subnet that has not ended."""
        self._counts: dict[_Key, int] = {}
        """How many others a subnet waits for; subnets that wait for none are left out."""

    def admit(self, subnet: _Key, others: Iterable[_Key]) -> None:
        """A subnet begins; it waits for the others, each named once, that have not ended."""
        pending = [other for other in others if other in self._followers]
        for other in pending:
            self._followers[other].append(subnet)
        if pending:
            self._counts[subnet] = len(pending)
        self._followers[subnet] = []

    def end(self, subnet: _Key) -> None:
        """Nobody waits for a subnet any more; told again, nothing."""
        for follower in self._followers.pop(subnet, ()):
            self._counts[follower] -= 1
            if not self._counts[follower]:
                del self._counts[follower]

    def is_waiting(self, subnet: _Key) -> bool:
        """Whether a subnet waits for any other."""
        return subnet in self._counts

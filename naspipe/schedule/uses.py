"""Who uses each layer, in sequence order: noted once per subnet, whoever asks how often.

Every stage has to know the users of layers that may come to it, and that is the same list for all
of them. Stages of one process (the simulator's) share one; each reads as far as it has admitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from naspipe.core.ids import LayerId, StreamId, Version
from naspipe.core.subnet import Subnet


class Uses:
    """The users of every layer of every stream."""

    __slots__ = ("_next", "_users")

    def __init__(self) -> None:
        self._users: dict[LayerId, list[Version]] = {}
        self._next: dict[StreamId, int] = {}

    def note(self, subnet: Subnet) -> None:
        """Note a subnet's layers, in sequence order; one that was noted already changes nothing."""
        stream, sequence_id, chain = subnet
        if sequence_id < self._next.get(stream, 0):
            return
        self._next[stream] = sequence_id + 1
        users, version = self._users, Version(sequence_id)
        for block, candidate in enumerate(chain):
            layer = LayerId(stream, block, candidate)
            known = users.get(layer)
            if known is None:
                users[layer] = [version]
            else:
                known.append(version)

    def of(self, layer: LayerId) -> Sequence[Version]:
        """The users of a layer, a list that grows; not all need to be admitted where one asks."""
        return self._users.setdefault(layer, [])

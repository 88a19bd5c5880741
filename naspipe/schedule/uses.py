"""Who uses each layer, in sequence order: noted once per subnet, whoever asks how often.

Every stage has to know the users of layers that may come to it, and that is the same list for all
of them. Stages of one process (the simulator's) share one; each reads as far as it has admitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from naspipe.config.ids import LayerId, StreamId, Subnet, Version

_LONG = 64
"""Users of a layer that a single reader may leave unread."""


class Uses:
    """The users of every layer of every stream.

    Args:
        is_shared: whether several stages read it. A single one takes users out as it reads them,
            so that what is kept does not grow with the stream.
    """

    __slots__ = ("_is_shared", "_long", "_next", "_users")

    def __init__(self, is_shared: bool = True) -> None:
        self._is_shared = is_shared
        self._users: dict[LayerId, list[Version]] = {}
        self._next: dict[StreamId, int] = {}
        self._long: list[LayerId] = []

    def note(self, subnet: Subnet, writes: bool = True) -> None:
        """Note a subnet's layers, in sequence order; one that was noted already changes nothing.

        Of one that writes none of them, nothing is noted but that it came.
        """
        stream, sequence_id, chain, candidates = subnet
        if sequence_id < self._next.get(stream, 0):
            return
        self._next[stream] = sequence_id + 1
        users, version = self._users, Version(sequence_id)
        for block, candidate in enumerate((candidates or chain) if writes else ()):
            layer = LayerId(stream, block, candidate)
            known = users.get(layer)
            if known is None:
                users[layer] = [version]
            else:
                known.append(version)
                if len(known) == _LONG and not self._is_shared:
                    self._long.append(layer)

    def of(self, layer: LayerId) -> Sequence[Version]:
        """The users of a layer, a list that grows; not all need to be admitted where one asks."""
        return self._users.setdefault(layer, [])

    def take(self, layer: LayerId, count: int) -> int:
        """The first users of a layer were read; returns how many of them are still listed."""
        if self._is_shared:
            return count
        del self._users[layer][:count]
        return 0

    def unread(self) -> list[LayerId]:
        """Layers that a single reader should read now: nobody did for many of their users."""
        long, self._long = self._long, []
        return long

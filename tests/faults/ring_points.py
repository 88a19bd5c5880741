"""Moments of a message's way through shared memory at which a stage is killed."""

from __future__ import annotations

from naspipe.wire.shared_rings import Ring
from naspipe.wire.transport import ZmqTransport


def before(owner, name, killer, when=lambda *args: True):
    """Let the killer look before each call of a method."""
    method = getattr(owner, name)

    def call(self, *args, **kw):
        if when(*args):
            killer()
        return method(self, *args, **kw)

    setattr(owner, name, call)


def after(owner, name, killer, when):
    """Let the killer look behind each call of a method, by what it returned."""
    method = getattr(owner, name)

    def call(self, *args, **kw):
        result = method(self, *args, **kw)
        if when(result):
            killer()
        return result

    setattr(owner, name, call)


RING_POINTS = {
    "room": lambda killer: after(Ring, "reserve", killer, lambda position: position is not None),
    "bytes": lambda killer: after(Ring, "put", killer, lambda position: position is not None),
    "header": lambda killer: before(ZmqTransport, "_send", killer, lambda worker, frames: any(
        not len(frame) for frame in frames)),
    "read": lambda killer: before(Ring, "get", killer),
    "back": lambda killer: before(Ring, "give_back", killer),
}  # fmt: skip
"""Bytes have room, lie there, are told of, are there to be read, are given back: at each a kill."""

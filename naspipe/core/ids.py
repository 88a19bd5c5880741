"""Identities: small integers with names, and the layer that they point at."""

from __future__ import annotations

from typing import NamedTuple, NewType

StreamId = NewType("StreamId", int)
"""One independent run (its own seed and subnets) inside a pipeline: 0, 1, 2, ..."""

SequenceId = NewType("SequenceId", int)
"""A subnet's place in its stream's exploration order: 0, 1, 2, ... without gaps."""

StageId = NewType("StageId", int)
"""One position in a pipeline: 0, 1, 2, ... in the order of the chain."""

WorkerId = NewType("WorkerId", int)
"""One process that holds positions; the launcher and messages know it by this number."""

Version = NewType("Version", int)
"""State of a layer after one WRITE, named by the sequence ID of that WRITE."""

INITIAL = Version(-1)
"""The version every layer has before its first WRITE."""

LATEST = Version(-2)
"""In a ticket: whichever version is the newest when the access begins."""


FIRST_STREAM = StreamId(0)
"""The stream of a run that has only one."""


class LayerId(NamedTuple):
    """One candidate of one block of one stream; prints as ``0:3.1``.

    ``block`` is the position in the chain, shared layers included; what users call
    "choice block 3" is turned into it by :meth:`naspipe.core.space.Space.layer`.
    """

    stream: StreamId
    block: int
    candidate: int

    def __str__(self) -> str:
        return f"{self.stream}:{self.block}.{self.candidate}"


def alone_in(layer: LayerId) -> LayerId:
    """How a layer is called where its stream is the only one: in the stream's own files."""
    return layer._replace(stream=FIRST_STREAM)

"""How the streams of a pipeline are connected: trained streams, losses, and taps.

A plain run needs none of this: :data:`PLAIN`. Blocks are positions in a stream's chain.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import NewType

from naspipe.config.errors import ConfigError
from naspipe.config.ids import StreamId
from naspipe.config.steps import Steps

InputName = NewType("InputName", str)
"""The name of an input that a task waits for, in addition to the versions that it reads."""

CHAIN = InputName("chain")
"""The output of the previous block; for a backward, the gradient from the next block."""


FIELD = "field:"
"""Prefix of the names of inputs that are batch fields."""


def field_input(name: str) -> InputName:
    """Return the name of the input for a batch field."""
    return InputName(f"{FIELD}{name}")


CREDIT = "credit:"
"""Prefix of the credit that returns for a tapped output when its receiver has finished with it."""


class TapRole(Enum):
    """How a block uses a tapped output."""

    INPUT = "input"
    """The block takes it after the tensors of the chain."""
    LESSON = "lesson"
    """The block's objective compares with it."""


@dataclass(frozen=True, slots=True)
class Tap:
    """The output of a block of one stream goes to a block of another in the same step.

    No gradient returns. ``passes`` pairs passes of the source with passes of the sink; None pairs
    equal numbers.
    """

    source: tuple[StreamId, int]
    """Stream and block."""
    sink: tuple[StreamId, int]
    role: TapRole
    passes: tuple[tuple[int, int], ...] | None = None
    number: int | None = None
    """Distinguishes taps between the same two blocks."""

    @property
    def name(self) -> InputName:
        """Name of the input of the sink's task."""
        stream, block = self.source
        which = f"{stream}.{block}" if self.number is None else f"{stream}.{block}#{self.number}"
        return InputName(f"{self.role.value}:{which}>{self.sink[1]}")

    def sinks(self, source_pass: int) -> list[int]:
        """Return the passes of the sink that take a pass of the source."""
        if self.passes is None:
            return [source_pass]
        return [sink for source, sink in self.passes if source == source_pass]

    def sources(self, sink_pass: int) -> list[int]:
        """Return the passes of the source that a pass of the sink takes."""
        if self.passes is None:
            return [sink_pass]
        return [source for source, sink in self.passes if sink == sink_pass]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWiring:
    """How one stream differs from a plain training run."""

    is_trained: bool = True
    """Otherwise its subnets have forwards only, and none of its layers are written."""
    rank: int = 0
    """Tasks of streams with a lower rank go first, whatever the dispatch order is."""
    window: int | None = None
    """Maximum number of subnets in flight; None for the execution's."""
    lingers: bool = True
    """For a stream that is not trained: True if its subnets stay in flight, on every stage, until
    the passes that take their outputs have finished. Its window then counts from the oldest of
    them."""
    cut_like: int | None = None
    """The stream from which the cuts are copied, block by block; None for separate cuts."""
    objectives: tuple[int, ...] = ()
    """In rising order: blocks before the last that compute a loss. They get no gradient from later
    blocks, because the backward begins there."""
    late_fields: tuple[tuple[int, str], ...] = ()
    """Block and name of each batch field that is requested at admission and arrives later."""

    def sections(self, num_blocks: int) -> list[range]:
        """Return the blocks of each backward; that of the chain's end is the first."""
        bounds = [0, *(block + 1 for block in self.objectives), num_blocks]
        ranges = [range(low, high) for low, high in pairwise(bounds)]
        return ranges[::-1] if self.is_trained else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The wiring of every stream, and the connections between them."""

    streams: tuple[StreamWiring, ...] = ()
    """By stream; those not listed are plain."""
    taps: tuple[Tap, ...] = ()
    exchanges: tuple[str, ...] = ()
    """Names of the exchanges that WRITEs wait for, in addition to those of the recipes."""

    def of(self, stream: int) -> StreamWiring:
        return self.streams[stream] if stream < len(self.streams) else _PLAIN_STREAM

    @property
    def lingering(self) -> frozenset[int]:
        """Streams whose subnets stay in flight for the streams that take their outputs."""
        return frozenset(
            number
            for number, stream in enumerate(self.streams)
            if stream.lingers and not stream.is_trained
        )

    def among(self, streams: Collection[int]) -> Wiring:
        """Return the wiring with only the taps between these streams."""
        taps = (tap for tap in self.taps if {tap.source[0], tap.sink[0]} <= set(streams))
        return replace(self, taps=tuple(taps))

    def joined(self, num_streams: int) -> list[set[int]]:
        """Return the sets of streams that taps connect; they share checkpoints."""
        found = [{number} for number in range(num_streams)]
        for tap in self.taps:
            ends = [each for each in found if each & {tap.source[0], tap.sink[0]}]
            found = [each for each in found if each not in ends] + [set().union(*ends)]
        return found

    def completed(self, lengths: Sequence[int], steps: Steps) -> Wiring:
        """Check the wiring; add the taps of a sandwich step, whose first pass is the teacher."""
        taps = self.taps
        if steps.distills:
            passes = tuple((0, number) for number in range(1, steps.trained))
            ends = [(StreamId(stream), length - 1) for stream, length in enumerate(lengths)]
            taps += tuple(Tap(end, end, TapRole.LESSON, passes) for end in ends)
        completed = replace(self, taps=taps)
        _check(completed, lengths)
        return completed


_PLAIN_STREAM = StreamWiring()

PLAIN = Wiring()
"""Independent streams, each trained by the loss at its end."""


def _check(wiring: Wiring, lengths: Sequence[int]) -> None:
    for number, stream in enumerate(wiring.streams):
        blocks = [*stream.objectives, *(block for block, _ in stream.late_fields)]
        if number >= len(lengths) or any(not 0 <= block < lengths[number] for block in blocks):
            raise ConfigError(f"wiring of stream {number}: expected blocks of its chain, {stream}")
        own = stream.objectives
        if list(own) != sorted(set(own)) or lengths[number] - 1 in own:
            raise ConfigError(
                f"wiring of stream {number}: expected rising blocks before the last one as "
                f"objectives, found {list(own)}"
            )
    for tap in wiring.taps:
        for stream_id, block in (tap.source, tap.sink):
            if stream_id >= len(lengths) or not 0 <= block < lengths[stream_id]:
                raise ConfigError(f"tap {tap.name}: expected blocks of the streams, found {tap}")
        if tap.source[0] == tap.sink[0] and tap.passes is None:
            raise ConfigError(
                f"tap {tap.name}: expected two streams, or pairs of passes within one, found {tap}"
            )
        if tap.source[0] > tap.sink[0] and any(
            tap.source[0] == other.sink[0] and other.source[0] == tap.sink[0]
            for other in wiring.taps
        ):
            raise ConfigError(f"tap {tap.name}: expected taps one way between two streams")

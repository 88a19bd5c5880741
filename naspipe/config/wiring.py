"""How the streams of a pipeline are joined: who is trained, where losses arise, what is tapped.

A plain run needs none of it: :data:`PLAIN`. Blocks are positions in a stream's chain.
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
"""What a task waits for, beside the versions that it reads."""

CHAIN = InputName("chain")
"""The output of the block before; for a backward, the gradient from the block behind."""


FIELD = "field:"
"""What the names of inputs that are batch fields begin with."""


def field_input(name: str) -> InputName:
    """The input that is a batch field."""
    return InputName(f"{FIELD}{name}")


CREDIT = "credit:"
"""What comes back for a tapped output begins with: whoever took it is through."""


class TapRole(Enum):
    """What a tapped output is to the block that takes it."""

    INPUT = "input"
    """The block is called with it, behind what the chain hands on."""
    LESSON = "lesson"
    """The block's objective compares with it."""


@dataclass(frozen=True, slots=True)
class Tap:
    """The output of a block of one stream goes to a block of another in the same step.

    No gradient comes back. ``passes`` pairs passes of the source with passes of the sink; None
    pairs each with its own number.
    """

    source: tuple[StreamId, int]
    """Stream and block."""
    sink: tuple[StreamId, int]
    role: TapRole
    passes: tuple[tuple[int, int], ...] | None = None
    number: int | None = None
    """Tells taps from one block to another apart, where there are several."""

    @property
    def name(self) -> InputName:
        """What the sink's task calls it."""
        stream, block = self.source
        which = f"{stream}.{block}" if self.number is None else f"{stream}.{block}#{self.number}"
        return InputName(f"{self.role.value}:{which}>{self.sink[1]}")

    def sinks(self, source_pass: int) -> list[int]:
        """The passes of the sink that take a pass of the source."""
        if self.passes is None:
            return [source_pass]
        return [sink for source, sink in self.passes if source == source_pass]

    def sources(self, sink_pass: int) -> list[int]:
        """The passes of the source that a pass of the sink takes."""
        if self.passes is None:
            return [sink_pass]
        return [source for source, sink in self.passes if sink == sink_pass]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWiring:
    """What of one stream differs from a plain training run."""

    is_trained: bool = True
    """Otherwise its subnets have forwards only, and nothing of it is written."""
    rank: int = 0
    """Tasks of streams of a lower rank go first, whatever the dispatch order says."""
    window: int | None = None
    """Subnets that may be under way; None for the execution's."""
    lingers: bool = True
    """Where it is not trained: whether its subnets stay under way, on every stage, until those that
    take their outputs are through. Its window then counts from the oldest of them."""
    cut_like: int | None = None
    """The stream whose cuts this one has, block by block; None for cuts of its own."""
    objectives: tuple[int, ...] = ()
    """Rising: blocks before the last in which a loss arises. No gradient from behind enters them:
    the backward begins there, and needs nothing of the later blocks."""
    late_fields: tuple[tuple[int, str], ...] = ()
    """Block and name of each batch field that is asked for at admission and comes later."""

    def sections(self, num_blocks: int) -> list[range]:
        """The blocks through which each backward goes, that of the chain's end first."""
        bounds = [0, *(block + 1 for block in self.objectives), num_blocks]
        ranges = [range(low, high) for low, high in pairwise(bounds)]
        return ranges[::-1] if self.is_trained else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """Every stream's, and what joins them."""

    streams: tuple[StreamWiring, ...] = ()
    """By stream; those not listed are plain."""
    taps: tuple[Tap, ...] = ()
    exchanges: tuple[str, ...] = ()
    """What the WRITEs of a step wait for, beside what the recipes ask for."""

    def of(self, stream: int) -> StreamWiring:
        """That of one stream."""
        return self.streams[stream] if stream < len(self.streams) else _PLAIN_STREAM

    @property
    def lingering(self) -> frozenset[int]:
        """The streams whose subnets stay under way for those who take their outputs."""
        return frozenset(
            number
            for number, stream in enumerate(self.streams)
            if stream.lingers and not stream.is_trained
        )

    def among(self, streams: Collection[int]) -> Wiring:
        """With the taps between these streams only."""
        taps = (tap for tap in self.taps if {tap.source[0], tap.sink[0]} <= set(streams))
        return replace(self, taps=tuple(taps))

    def joined(self, num_streams: int) -> list[set[int]]:
        """Streams that taps join, each in one set: they are cut and go on at the same pass."""
        found = [{number} for number in range(num_streams)]
        for tap in self.taps:
            ends = [each for each in found if each & {tap.source[0], tap.sink[0]}]
            found = [each for each in found if each not in ends] + [set().union(*ends)]
        return found

    def completed(self, lengths: Sequence[int], steps: Steps) -> Wiring:
        """With the taps that a step's kind implies: a sandwich's first pass teaches the others.

        Args:
            lengths: blocks of each stream's chain.
            steps: how passes form steps, in every stream.

        Raises:
            ConfigError: for a block that its stream does not have, or joins that go in a circle.
        """
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
"""Streams that have nothing to do with one another, each trained by the loss at its end."""


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

"""Streams of a sampler that are too long to be drawn before a run: drawn a little ahead of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TextIO, overload

from naspipe.core.errors import ConfigError
from naspipe.core.events import Planned
from naspipe.core.ids import SequenceId, StreamId
from naspipe.core.json_text import parse_json
from naspipe.core.partition import Partition
from naspipe.core.subnet import Subnet
from naspipe.frontend.given.strategy_source import sample_stream
from naspipe.runtime.jobs.workload import Workload
from naspipe.streams.samplers import iterate_subnets

LONG = 4096
"""Streams of more subnets than that are drawn beside the training."""
SHOWN = 1024
"""How many are drawn before it, to plan by."""
_AHEAD = 512
"""How many are known beyond the last loss, at least; the window is far smaller."""
_AT_ONCE = 64

Choices = tuple[int, ...]


def is_drawn_beside(workload: Workload) -> bool:
    """Whether a stream is too long to be drawn before its run, and can be drawn beside it."""
    definition = workload.definition
    return (
        definition.num_passes > LONG
        and workload.make_strategy is None
        and not definition.sampler.startswith("file:")
        and definition.policy in ("csp", "sequential")
        and definition.recipe.steps.passes == 1
        and not workload.left_out
    )


def first_choices(workload: Workload) -> list[Choices]:
    """What stands for a long stream while it is planned: its first subnets, then every layer."""
    return [*islice(_draw(workload), SHOWN), *sample_stream(workload.space)]


class DrawnSource:
    """Draws a sampler's stream as far as it is needed; see :class:`SubnetSource`.

    Args:
        workload: whose sampler it is.
        stream: which one.
        partition_of: cuts each subnet.
        record: where the subnets are written, one list of choices a line, as they come.
    """

    def __init__(
        self,
        workload: Workload,
        stream: StreamId,
        partition_of: Callable[[Subnet], Partition],
        record: Path,
    ) -> None:
        self._workload = workload
        self._stream = stream
        self._partition_of = partition_of
        self._record = record
        self._left: Iterator[Choices] = iter(())
        self._file: TextIO | None = None
        self._count = 0
        self._usual: Partition | None = None

    @property
    def proposed(self) -> Sequence[Planned]:
        """Every subnet so far, drawn anew where one asks; their partitions are not kept."""
        return _Redrawn(self._workload, self._stream, self._count, self._usual)

    def begin(self, scores: Sequence[float]) -> Sequence[Planned]:
        """See :class:`naspipe.runtime.jobs.ports.SubnetSource`.

        Raises:
            ConfigError: when the run's earlier life had other subnets.
        """
        self.close()
        self._left, self._count = _draw(self._workload), 0
        done = len(scores)
        earlier = list(islice(self._left, done))
        if earlier:
            self._check_record(earlier)
        self._file = self._record.open("w", encoding="utf-8")
        found = [self._planned(choices, is_done=True) for choices in earlier]
        self._write(earlier)
        return [*found, *self._next(_AHEAD)]

    def take(self, sequence_id: int, score: float) -> Sequence[Planned]:
        """See :class:`naspipe.runtime.jobs.ports.SubnetSource`."""
        return self._next(_AT_ONCE) if self._count <= sequence_id + _AHEAD - _AT_ONCE else ()

    def close(self) -> None:
        """Close the record."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _next(self, count: int) -> list[Planned]:
        left = self._workload.definition.num_passes - self._count
        choices = list(islice(self._left, min(count, left)))
        self._write(choices)
        return [self._planned(each) for each in choices]

    def _write(self, choices: Sequence[Choices]) -> None:
        if self._file is not None:
            self._file.writelines(json.dumps(list(map(int, each))) + "\n" for each in choices)
            self._file.flush()

    def _planned(self, choices: Choices, is_done: bool = False) -> Planned:
        chain = self._workload.space.chain(choices)
        subnet = Subnet(self._stream, SequenceId(self._count), chain)
        self._count += 1
        if self._usual is None or not is_done:  # nothing runs of what an earlier life has done
            self._usual = self._partition_of(subnet)
        return Planned(subnet, self._usual)

    def _check_record(self, choices: Sequence[Choices]) -> None:
        try:
            with self._record.open(encoding="utf-8") as file:
                found = [parse_json(line) for line in islice(file, len(choices))]
        except (OSError, ValueError):
            found = []
        if found != [list(each) for each in choices]:
            raise ConfigError(
                f"{self._record}: expected the stream that the sampler "
                f"{self._workload.definition.sampler} draws, found another; put back the file "
                f"that the run wrote"
            )


class _Redrawn(Sequence[Planned]):
    """The first subnets of a stream, none of which is kept."""

    def __init__(
        self, workload: Workload, stream: StreamId, count: int, usual: Partition | None
    ) -> None:
        self._workload, self._stream = workload, stream
        self._count, self._usual = count, usual

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Planned]:
        if self._usual is None:
            return
        chain: Callable[[Choices], tuple[int, ...]] = self._workload.space.chain
        for number, choices in enumerate(islice(_draw(self._workload), self._count)):
            yield Planned(Subnet(self._stream, SequenceId(number), chain(choices)), self._usual)

    @overload
    def __getitem__(self, place: int) -> Planned: ...

    @overload
    def __getitem__(self, place: slice) -> list[Planned]: ...

    def __getitem__(self, place: int | slice) -> Planned | list[Planned]:
        return list(self)[place]


def _draw(workload: Workload) -> Iterator[Choices]:
    definition, space = workload.definition, workload.space
    return iterate_subnets(definition.sampler, space, definition.seed)

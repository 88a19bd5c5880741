"""Streams of a sampler: drawn before a run, or, where they are too long, a little ahead of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TextIO

from naspipe.config.errors import ConfigError
from naspipe.config.ids import StreamId, Subnet
from naspipe.config.text import parse_json
from naspipe.core.events import Planned
from naspipe.frontend.given.pass_streams import (
    draw_passes,
    filled,
    in_whole_steps,
    iterate_passes,
)
from naspipe.frontend.given.strategy_source import sample_stream
from naspipe.runtime.jobs.workload import Workload
from naspipe.sim.cutting import CutSteps
from naspipe.streams.ports import Choices
from naspipe.streams.samplers import FILES
from naspipe.trace.storage.writing import writing

LONG = 4096
"""Streams of more subnets than that are drawn beside the training."""
SHOWN = 1024
"""How many are drawn before it, to plan by."""
_AHEAD = 512
"""How many are known beyond the last loss, at least; the window is far smaller."""
_AT_ONCE = 64



def is_drawn_beside(workload: Workload) -> bool:
    """Whether a stream is too long to be drawn before its run, and can be drawn beside it.

    A file is read and checked whole before a run.
    """
    definition = workload.definition
    return (
        definition.num_passes > LONG
        and not workload.is_proposed
        and not definition.sampler.startswith("file:")
    )


def why_known(workload: Workload, order: str) -> str:
    """What is said of a long stream that is planned whole before its run; empty for any other."""
    definition = workload.definition
    if definition.num_passes <= LONG or workload.is_proposed:
        return ""
    why = (
        f"the order {order} needs to know them (--order auto or paper does not)"
        if is_drawn_beside(workload)
        else f"the sampler {definition.sampler:.80} is a file, which is read whole"
    )
    return f"planning all {definition.num_passes:,} subnets before the start: {why}"


def first_choices(workload: Workload) -> list[Choices]:
    """What stands for a long stream while it is planned: its first steps, then every layer."""
    passes = workload.recipe.steps.passes
    shown = -(-SHOWN // passes) * passes
    return [
        *islice(iterate_passes(workload), shown),
        *in_whole_steps(workload, sample_stream(workload.space)),
    ]


def draw_stream(
    number: StreamId, workload: Workload, is_drawn_beside: bool = False
) -> tuple[Subnet, ...]:
    """The subnets of a stream, or what stands for them where they come beside the training."""
    is_listed = workload.definition.sampler.partition(":")[0] in FILES
    if workload.is_proposed and (workload.make_strategy or not is_listed):
        stream = in_whole_steps(workload, sample_stream(workload.space))
    elif is_drawn_beside:
        stream = first_choices(workload)
    else:
        stream = draw_passes(workload)
    return tuple(filled(workload, number, 0, stream))


class DrawnSource:
    """Draws a sampler's stream as far as it is needed; see :class:`SubnetSource`.

    Args:
        workload: whose sampler it is.
        stream: which one.
        cut: says where the passes of whole steps are cut.
        unit: sequence IDs that become known together: those of a step, or of a bulk.
        record: where the subnets are written, one list of choices a line, as they come.
    """

    def __init__(
        self, workload: Workload, stream: StreamId, cut: CutSteps, unit: int, record: Path
    ) -> None:
        self._workload = workload
        self._stream = stream
        self._cut = cut
        self._record = record
        self._at_once = max(_AT_ONCE // unit, 1) * unit
        self._ahead = -(-(_AHEAD + unit) // unit) * unit
        self._left: Iterator[Choices] = iter(())
        self._file: TextIO | None = None
        self.count = 0
        """See :class:`naspipe.runtime.jobs.ports.SubnetSource`."""

    @property
    def subnets(self) -> Iterable[Subnet]:
        """Every subnet so far, drawn anew: none is kept."""
        return filled(
            self._workload, self._stream, 0, islice(iterate_passes(self._workload), self.count)
        )

    def begin(self, done: int, scores: Iterable[float]) -> Sequence[Planned]:
        """See :class:`naspipe.runtime.jobs.ports.SubnetSource`.

        Raises:
            ConfigError: when the run's earlier life had other subnets.
            StorageError: when the record cannot be written.
        """
        self.close()
        self._left, self.count = iterate_passes(self._workload), done
        with writing(self._record):
            self._file = self._record.open("r+" if done else "w+", encoding="utf-8")
            self._go_behind(self._file, islice(self._left, done))
        return self._next(self._ahead)

    def take(self, sequence_id: int, score: float) -> Sequence[Planned]:
        """See :class:`naspipe.runtime.jobs.ports.SubnetSource`."""
        is_near = self.count <= sequence_id + self._ahead - self._at_once
        return self._next(self._at_once) if is_near else ()

    def close(self) -> None:
        """Close the record."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _next(self, count: int) -> list[Planned]:
        left = self._workload.definition.num_passes - self.count
        choices = list(islice(self._left, min(count, left)))
        if self._file is not None and choices:
            with writing(self._record):
                self._file.writelines(_line(each) for each in choices)
                self._file.flush()
        found = list(filled(self._workload, self._stream, self.count, choices))
        self.count += len(found)
        return list(map(Planned, found, self._cut(found)))

    def _go_behind(self, record: TextIO, choices: Iterable[Choices]) -> None:
        """The record begins with these; what follows them comes anew.

        One of a stream that comes new to a run that goes on is empty.
        """
        if not record.read(1):
            record.writelines(map(_line, choices))
            return
        record.seek(0)
        try:
            is_same = all(parse_json(record.readline()) == list(each) for each in choices)
        except ValueError:
            is_same = False
        if not is_same:
            raise ConfigError(
                f"{self._record}: expected the stream that the sampler "
                f"{self._workload.definition.sampler} draws, found another; put back the file "
                f"that the run wrote"
            )
        record.seek(record.tell())
        record.truncate()


def _line(choices: Choices) -> str:
    return json.dumps(list(map(int, choices))) + "\n"

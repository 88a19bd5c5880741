"""The subnets of a stream: drawn before a run, drawn during it, or proposed by a strategy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from itertools import islice, repeat
from pathlib import Path

from naspipe.checks.sketched import sketch
from naspipe.config.errors import ConfigError
from naspipe.config.ids import SequenceId, StreamId, Subnet
from naspipe.config.space import SettingDecisions, Space
from naspipe.config.text import parse_json
from naspipe.config.user_code import users_code
from naspipe.engine.events import Planned
from naspipe.jobs.losses import distilling
from naspipe.jobs.workload import Workload
from naspipe.plan.chains import CutSteps
from naspipe.plan.costs import first_of_kind
from naspipe.store.files import writing
from naspipe.streams.feedback import Choices, ExplorationStrategy, FeedbackLoop
from naspipe.streams.passes import ProbingStrategy, in_passes, num_draws, trained_passes
from naspipe.streams.samplers import FILES, draw_subnets, iterate_subnets


class _RecordedSource:
    """Common part of the sources of subnets: the position, and the record on disk.

    Args:
        stream: of the subnets.
        cut: returns the partitions of consecutive subnets.
        record: file of the subnets, one list of choices per line, written as they are admitted.
    """

    def __init__(self, stream: StreamId, cut: CutSteps, record: Path) -> None:
        self._stream, self._cut, self._record = stream, cut, record

    def close(self) -> None:
        """End the attempt; the base class has nothing to release."""

    def _resume_record(self, done: int, choices: Iterable[Choices], expected: str) -> None:
        """Keep the lines of the ``done`` subnets, which must have these choices, and no others.

        They are on disk before anything is added to them, so that a loss of power does not leave
        fewer lines than subnets that were trained.

        The record of a stream that is new to a resumed run is empty.
        """
        mode = "r+" if done else "w+"
        with writing(self._record), self._record.open(mode, encoding="utf-8") as file:
            if not file.read(1):
                file.writelines(map(_line, choices))
                file.flush()
                os.fsync(file.fileno())
                return
            file.seek(0)
            try:
                is_same = all(parse_json(file.readline()) == list(each) for each in choices)
            except ValueError:
                is_same = False
            if not is_same:
                raise ConfigError(f"{self._record}: expected {expected}")
            file.seek(file.tell())
            file.truncate()
            file.flush()
            os.fsync(file.fileno())

    def _append_record(self, choices: Sequence[Choices]) -> None:
        if choices:
            with writing(self._record), self._record.open("a", encoding="utf-8") as file:
                file.writelines(map(_line, choices))


def _line(choices: Choices) -> str:
    return json.dumps(list(map(int, choices))) + "\n"


class StrategySource(_RecordedSource):
    """Subnets that a strategy proposes from scores; see :class:`naspipe.jobs.ports.SubnetSource`.

    Args:
        make_strategy: makes a fresh strategy.
        space: of the subnets.
        stream: see the base class, as for ``cut`` and ``record``.
        delay: number of subnets from a score to the first proposal that can depend on it.
        num_subnets: total number.
        decides: True if proposals are over the space's decisions, if it has any; otherwise they are
            over its choice blocks.
    """

    def __init__(
        self,
        make_strategy: Callable[[], ExplorationStrategy],
        space: Space,
        stream: StreamId,
        cut: CutSteps,
        *,
        delay: int,
        num_subnets: int,
        record: Path,
        decides: bool = True,
    ) -> None:
        super().__init__(stream, cut, record)
        self._make_strategy = make_strategy
        self._space = space
        self._decisions = space.decisions if decides else None
        self._delay = delay
        self._num_subnets = num_subnets
        self._strategy: ExplorationStrategy | None = None
        self._loop: FeedbackLoop | None = None
        self.subnets: list[Subnet] = []

    @property
    def count(self) -> int:
        return len(self.subnets)

    def begin(self, done: int, scores: Iterable[float]) -> Sequence[Planned]:
        """See :class:`naspipe.jobs.ports.SubnetSource`.

        Raises:
            ConfigError: if the strategy fails, or its proposals are not subnets or differ from
                those of an earlier attempt of the run.
        """
        self.close()
        self.subnets = []
        with self._users():
            strategy = self._strategy = self._make_strategy()
            loop = self._loop = FeedbackLoop(strategy, self._delay, self._num_subnets)
            found = loop.start()
            for sequence_id, score in enumerate(scores):
                found += loop.take(sequence_id, score)
            choices = self._admit(found)
        self._resume_record(
            done,
            choices[:done],
            "the subnets that the strategy proposes for the scores so far, found others; it is not "
            "the strategy that began this run, or not a function of its seed and scores",
        )
        self._append_record(choices[done:])
        return self._planned(done)

    def take(self, sequence_id: int, score: float) -> Sequence[Planned]:
        if self._loop is None:
            return ()
        with self._users():
            choices = self._admit(self._loop.take(sequence_id, score))
            if self._loop.is_finished and (finish := getattr(self._strategy, "finish", None)):
                finish()
        self._append_record(choices)
        return self._planned(self.count - len(choices))

    def close(self) -> None:
        """Close a strategy that has a method ``close``."""
        strategy, self._strategy, self._loop = self._strategy, None, None
        if close := getattr(strategy, "close", None):
            close()

    def _admit(self, drawn: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """Add proposed subnets; return their choices."""
        decisions = self._decisions
        found = [decisions.choices(each) if decisions else tuple(each) for each in drawn]
        for choices in found:
            chain = self._space.chain(choices)
            self.subnets.append(self._space.subnet(self._stream, self.count, chain))
        return found

    def _planned(self, first: int) -> list[Planned]:
        return [Planned(each, self._cut((each,))[0]) for each in self.subnets[first:]]

    def _users(self) -> AbstractContextManager[None]:
        return users_code("the strategy of the stream: expected subnets, found")


def sample_stream(space: Space) -> list[tuple[int, ...]]:
    """Return choices that cover every candidate and setting, to represent subnets not known yet."""
    settings = space.decisions if isinstance(space.decisions, SettingDecisions) else None
    counts = space.candidate_counts if settings is None else settings.counts
    found = [tuple(number % count for count in counts) for number in range(max(counts, default=1))]
    return found if settings is None else list(map(settings.choices, found))


_STEPS = 16


def draw_passes(workload: Workload) -> list[Choices]:
    """Return the choices of every pass of a stream, in sequence order."""
    space, definition = workload.space, workload.definition
    count = num_draws(definition.recipe.steps, definition.steps)
    drawn = draw_subnets(definition.sampler, space, definition.seed, count)
    return _expanded(workload)(drawn)


def iterate_passes(workload: Workload) -> Iterator[Choices]:
    """Yield the choices of passes without end; a few steps are drawn at a time."""
    space, definition = workload.space, workload.definition
    drawn = iterate_subnets(definition.sampler, space, definition.seed)
    count, expanded = num_draws(definition.recipe.steps, _STEPS), _expanded(workload)
    while some := list(islice(drawn, count)):
        yield from expanded(some)


def in_whole_steps(workload: Workload, drawn: Sequence[Choices]) -> list[Choices]:
    """Return whole steps of passes with these subnets; the last one is repeated as needed."""
    lacking = -len(drawn) % num_draws(workload.recipe.steps, 1)
    return _expanded(workload)([*drawn, *repeat(drawn[-1], lacking)])


def strategy_maker(workload: Workload) -> Callable[[], ExplorationStrategy] | None:
    """Return a maker of the strategy that proposes a stream from losses; None if there is none."""
    space, definition, steps = workload.space, workload.definition, workload.recipe.steps
    if not steps.probes:
        return workload.make_strategy
    expanded = _expanded(workload, trained_passes)
    return lambda: ProbingStrategy(
        iterate_subnets(definition.sampler, space, definition.seed), steps, expanded
    )


def filled(
    workload: Workload, stream: StreamId, first: int, passes: Iterable[Choices]
) -> Iterator[Subnet]:
    """Yield the subnets of passes from sequence ID ``first`` on; unneeded passes are empty."""
    steps, left_out, space = workload.recipe.steps, workload.left_out, workload.space
    for y, choices in enumerate(passes, first):
        is_empty = steps.pass_of(y) in left_out
        chain = space.chain(choices)
        yield Subnet(stream, SequenceId(y), ()) if is_empty else space.subnet(stream, y, chain)


def _expanded(
    workload: Workload, expand: Callable[..., list[Choices]] = in_passes
) -> Callable[[Sequence[Choices]], list[Choices]]:
    """Return a function that makes the passes of whole steps from the drawn choices."""
    space, steps = workload.space, workload.recipe.steps
    if steps.distills:
        distilling(workload.loss)
    sizes = parameter_counts(space)
    return lambda drawn: expand(drawn, steps, space, sizes)


def parameter_counts(space: Space) -> Callable[[int, int], int]:
    """Return the number of parameters by block of the chain and candidate, computed on demand."""
    twins = first_of_kind(space)

    @cache
    def count(twin: int, candidate: int) -> int:
        return sum(each.numel() for each in sketch(space, twin, candidate).parameters())

    return lambda block, candidate: count(twins[block], candidate)


LONG = 4096
"""Streams with more subnets than this are drawn during training."""
SHOWN = 1024
"""Number of their subnets that are drawn before training, for planning."""
_AHEAD = 512
"""Minimum number of subnets known beyond the last loss; the window is far smaller."""
_AT_ONCE = 64


def is_drawn_beside(workload: Workload) -> bool:
    """Return True if a stream is too long to draw before its run; files are always read first."""
    definition = workload.definition
    return (
        definition.num_passes > LONG
        and not workload.is_proposed
        and not definition.sampler.startswith("file:")
    )


def why_known(workload: Workload, order: str) -> str:
    """Return a note if a long stream is planned as a whole before its run; otherwise empty."""
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
    """Return choices that represent a long stream: its first steps, then every layer."""
    passes = workload.recipe.steps.passes
    shown = -(-SHOWN // passes) * passes
    return [
        *islice(iterate_passes(workload), shown),
        *in_whole_steps(workload, sample_stream(workload.space)),
    ]


def draw_stream(
    number: StreamId, workload: Workload, is_drawn_beside: bool = False
) -> tuple[Subnet, ...]:
    """Return the subnets of a stream, or a sample if they become known during the run."""
    is_listed = workload.definition.sampler.partition(":")[0] in FILES
    if workload.is_proposed and (workload.make_strategy or not is_listed):
        stream = in_whole_steps(workload, sample_stream(workload.space))
    elif is_drawn_beside:
        stream = first_choices(workload)
    else:
        stream = draw_passes(workload)
    return tuple(filled(workload, number, 0, stream))


class DrawnSource(_RecordedSource):
    """Draws a sampler's stream as far as it is needed; see :class:`SubnetSource`.

    Args:
        workload: whose sampler it is.
        stream: see the base class, as for ``cut``, which gets whole steps, and ``record``.
        unit: number of sequence IDs that become known together: those of a step, or of a bulk.
    """

    def __init__(
        self, workload: Workload, stream: StreamId, cut: CutSteps, unit: int, record: Path
    ) -> None:
        super().__init__(stream, cut, record)
        self._workload = workload
        self._at_once = max(_AT_ONCE // unit, 1) * unit
        self._ahead = -(-(_AHEAD + unit) // unit) * unit
        self._left: Iterator[Choices] = iter(())
        self.count = 0

    @property
    def subnets(self) -> Iterable[Subnet]:
        """All subnets so far, drawn again because none is kept."""
        choices = islice(iterate_passes(self._workload), self.count)
        return filled(self._workload, self._stream, 0, choices)

    def begin(self, done: int, scores: Iterable[float]) -> Sequence[Planned]:
        """See :class:`naspipe.jobs.ports.SubnetSource`.

        Raises:
            ConfigError: if an earlier attempt of the run had other subnets.
            StorageError: if the record cannot be written.
        """
        self._left, self.count = iterate_passes(self._workload), done
        sampler = self._workload.definition.sampler
        self._resume_record(
            done,
            islice(self._left, done),
            f"the stream that the sampler {sampler} draws, found another; put back the file that "
            f"the run wrote",
        )
        return self._next(self._ahead)

    def take(self, sequence_id: int, score: float) -> Sequence[Planned]:
        is_near = self.count <= sequence_id + self._ahead - self._at_once
        return self._next(self._at_once) if is_near else ()

    def _next(self, count: int) -> list[Planned]:
        left = self._workload.definition.num_passes - self.count
        choices = list(islice(self._left, min(count, left)))
        self._append_record(choices)
        found = list(filled(self._workload, self._stream, self.count, choices))
        self.count += len(found)
        return list(map(Planned, found, self._cut(found)))

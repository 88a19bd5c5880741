"""Streams of a sampler: drawn before a run, or, where they are too long, a little ahead of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice, repeat
from pathlib import Path
from typing import TextIO

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
from naspipe.streams.stream_file import read_stream, write_stream


class StrategySource:
    """One stream's strategy, its subnets so far, and their record; see :class:`SubnetSource`.

    Args:
        make_strategy: a fresh strategy.
        space: whose subnets they are.
        decides: it proposes numbers over the space's decisions, where it has some; otherwise a
            choice for each choice block.
        stream: which one.
        cut: says where each of them is cut.
        delay: from a score to the first proposal that knows of it, in subnets.
        num_subnets: in all.
        record: where the subnets are written, one list of choices a line, as they come.
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
        self._make_strategy = make_strategy
        self._space = space
        self._decisions = space.decisions if decides else None
        self._stream = stream
        self._cut = cut
        self._delay = delay
        self._num_subnets = num_subnets
        self._record = record
        self._strategy: ExplorationStrategy | None = None
        self._loop: FeedbackLoop | None = None
        self.subnets: list[Subnet] = []
        """Every one so far."""

    @property
    def count(self) -> int:
        """How many there are so far."""
        return len(self.subnets)

    def begin(self, done: int, scores: Iterable[float]) -> Sequence[Planned]:
        """See :class:`naspipe.jobs.ports.SubnetSource`."""
        self.close()
        self.subnets = []
        with self._users():
            strategy = self._strategy = self._make_strategy()
            loop = self._loop = FeedbackLoop(strategy, self._delay, self._num_subnets)
            found = loop.start()
            for sequence_id, score in enumerate(scores):
                found += loop.take(sequence_id, score)
            choices = self._add(found)
        if done:
            self._check_record(choices[:done])
        with writing(self._record):
            write_stream(self._record, choices)
        return self._planned(self.subnets[done:])

    def take(self, sequence_id: int, score: float) -> Sequence[Planned]:
        """See :class:`naspipe.jobs.ports.SubnetSource`; raises as :meth:`begin`."""
        if self._loop is None:
            return ()
        with self._users():
            choices = self._add(self._loop.take(sequence_id, score))
            if self._loop.is_finished and (finish := getattr(self._strategy, "finish", None)):
                finish()
        if not choices:
            return ()
        with writing(self._record), self._record.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(each) + "\n" for each in choices)
        return self._planned(self.subnets[-len(choices) :])

    def close(self) -> None:
        """End a strategy that has something to end."""
        strategy, self._strategy, self._loop = self._strategy, None, None
        if close := getattr(strategy, "close", None):
            close()

    def _add(self, drawn: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """Take in what was proposed; returns the choices."""
        decisions = self._decisions
        found = [decisions.choices(each) if decisions else tuple(each) for each in drawn]
        for choices in found:
            chain = self._space.chain(choices)
            self.subnets.append(self._space.subnet(self._stream, self.count, chain))
        return found

    def _planned(self, subnets: Sequence[Subnet]) -> list[Planned]:
        return [Planned(each, self._cut((each,))[0]) for each in subnets]

    def _check_record(self, choices: Sequence[tuple[int, ...]]) -> None:
        if read_stream(self._record)[: len(choices)] != list(choices):
            raise ConfigError(
                f"{self._record}: expected the subnets that the strategy proposes for the scores "
                f"so far, found others; it is not the strategy that began this run, or not a "
                f"function of its seed and scores"
            )

    def _users(self) -> AbstractContextManager[None]:
        return users_code("the strategy of the stream: expected subnets, found")


def sample_stream(space: Space) -> list[tuple[int, ...]]:
    """Choices that use every candidate of every block, and every value of each setting.

    They stand for subnets not known yet.
    """
    settings = space.decisions if isinstance(space.decisions, SettingDecisions) else None
    counts = space.candidate_counts if settings is None else settings.counts
    found = [tuple(number % count for count in counts) for number in range(max(counts, default=1))]
    return found if settings is None else list(map(settings.choices, found))


_STEPS = 16


def draw_passes(workload: Workload) -> list[Choices]:
    """The choices of every pass, in sequence order; see
    :func:`naspipe.streams.passes.in_passes`.
    """
    space, definition = workload.space, workload.definition
    count = num_draws(definition.recipe.steps, definition.steps)
    drawn = draw_subnets(definition.sampler, space, definition.seed, count)
    return _expanded(workload)(drawn)


def iterate_passes(workload: Workload) -> Iterator[Choices]:
    """The same, a few steps at a time and without an end; raises as :func:`draw_passes`."""
    space, definition = workload.space, workload.definition
    drawn = iterate_subnets(definition.sampler, space, definition.seed)
    count, expanded = num_draws(definition.recipe.steps, _STEPS), _expanded(workload)
    while some := list(islice(drawn, count)):
        yield from expanded(some)


def in_whole_steps(workload: Workload, drawn: Sequence[Choices]) -> list[Choices]:
    """The passes of steps of these subnets, the last one repeated until its step is whole."""
    lacking = -len(drawn) % num_draws(workload.recipe.steps, 1)
    return _expanded(workload)([*drawn, *repeat(drawn[-1], lacking)])


def strategy_maker(workload: Workload) -> Callable[[], ExplorationStrategy] | None:
    """Makes what proposes the passes of a stream from losses; None where nothing does."""
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
    """The subnets of passes from sequence ID ``first`` on; one that nobody needs is empty."""
    steps, left_out, space = workload.recipe.steps, workload.left_out, workload.space
    for y, choices in enumerate(passes, first):
        is_empty = steps.pass_of(y) in left_out
        chain = space.chain(choices)
        yield Subnet(stream, SequenceId(y), ()) if is_empty else space.subnet(stream, y, chain)


def _expanded(
    workload: Workload, expand: Callable[..., list[Choices]] = in_passes
) -> Callable[[Sequence[Choices]], list[Choices]]:
    """Makes the passes of whole steps from what was drawn for them."""
    space, steps = workload.space, workload.recipe.steps
    if steps.distills:
        distilling(workload.loss)
    sizes = parameter_counts(space)
    return lambda drawn: expand(drawn, steps, space, sizes)


def parameter_counts(space: Space) -> Callable[[int, int], int]:
    """The number of parameters by block of the chain and candidate, looked up when asked for."""
    twins, known = first_of_kind(space), dict[tuple[int, int], int]()

    def count(block: int, candidate: int) -> int:
        layer = twins[block], candidate
        if layer not in known:
            module = sketch(space, *layer)
            known[layer] = sum(parameter.numel() for parameter in module.parameters())
        return known[layer]

    return count


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
        """See :class:`naspipe.jobs.ports.SubnetSource`."""

    @property
    def subnets(self) -> Iterable[Subnet]:
        """Every subnet so far, drawn anew: none is kept."""
        return filled(
            self._workload, self._stream, 0, islice(iterate_passes(self._workload), self.count)
        )

    def begin(self, done: int, scores: Iterable[float]) -> Sequence[Planned]:
        """See :class:`naspipe.jobs.ports.SubnetSource`.

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
        """See :class:`naspipe.jobs.ports.SubnetSource`."""
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

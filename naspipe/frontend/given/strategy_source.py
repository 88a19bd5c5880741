"""Streams that a strategy proposes while the run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from naspipe.config.errors import ConfigError
from naspipe.config.ids import StreamId, Subnet
from naspipe.config.space import SettingDecisions, Space
from naspipe.config.user_code import users_code
from naspipe.core.events import Planned
from naspipe.sim.cutting import CutSteps
from naspipe.streams.feedback import FeedbackLoop
from naspipe.streams.from_file import read_stream, write_stream
from naspipe.streams.ports import ExplorationStrategy
from naspipe.trace.storage.writing import writing


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
        """See :class:`naspipe.runtime.jobs.ports.SubnetSource`.

        Raises:
            ConfigError: when the strategy proposes what is no subnet, fails, or proposes other
                subnets than it did in the run's earlier life.
        """
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
        """See :class:`naspipe.runtime.jobs.ports.SubnetSource`; raises as :meth:`begin`."""
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

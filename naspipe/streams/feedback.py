"""Adaptive streams: an exploration strategy that learns from scores, with a fixed delay.

Scores are reported to the strategy in sequence order, and always the same scores before it proposes
a given subnet, so it proposes the same stream on any number of stages. One strategy object serves
all attempts of a run: its earlier answers are repeated without calling it again
(:class:`KeptStrategy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from naspipe.config.errors import ConfigError, InvariantError

Choices = tuple[int, ...]
"""One choice per choice block."""


class ExplorationStrategy(Protocol):
    """Proposes subnets, and learns from their scores."""

    def propose(self, sequence_id: int) -> Sequence[int] | None:
        """Return the next subnet, one choice per choice block. Called in sequence order.

        Returns None to wait for the score of a subnet that is under way; it is called again after
        the next score.
        """

    def observe(self, sequence_id: int, score: float) -> None:
        """Take the score of a subnet; called in sequence order, ``delay`` subnets later."""


class FeedbackLoop:
    """Turns scores that arrive in any order into the next subnets.

    Subnet y is proposed once the scores of all subnets <= y - 1 - ``delay`` were observed, and none
    of later ones; at most ``delay`` + 1 subnets are then under way. A strategy that waits for more
    scores is given them one at a time.

    Args:
        strategy: the strategy that proposes subnets.
        delay: number of subnets; part of a run's definition.
        num_subnets: total number of subnets.
    """

    def __init__(self, strategy: ExplorationStrategy, delay: int, num_subnets: int) -> None:
        if delay < 0:
            raise ConfigError(f"feedback delay: expected 0 or more subnets, found {delay}")
        self._strategy = strategy
        self._delay = delay
        self._num_subnets = num_subnets
        self._proposed = 0
        self._observed = 0
        self._waiting: dict[int, float] = {}

    @property
    def is_finished(self) -> bool:
        """True if every subnet was proposed and every score observed."""
        return self._observed == self._num_subnets

    def take(self, sequence_id: int, score: float) -> list[tuple[int, ...]]:
        """Take a score; returns the subnets that can be proposed now, in sequence order."""
        is_new = self._observed <= sequence_id < self._proposed
        if not is_new or sequence_id in self._waiting:
            raise InvariantError(
                f"score of subnet {sequence_id}: expected one of {self._observed} to "
                f"{self._proposed - 1} that was not told yet"
            )
        self._waiting[sequence_id] = score
        found: list[tuple[int, ...]] = []
        while self._observed in self._waiting:
            observed = self._observed
            self._strategy.observe(observed, self._waiting.pop(observed))
            self._observed += 1
            found += self.start()
        return found

    def start(self) -> list[tuple[int, ...]]:
        """Return the subnets that can be proposed now, initially those that need no score."""
        found: list[tuple[int, ...]] = []
        while self._proposed < min(self._num_subnets, self._observed + self._delay + 1):
            subnet = self._strategy.propose(self._proposed)
            if subnet is None:
                if self._observed == self._proposed:
                    raise ConfigError(
                        f"strategy {type(self._strategy).__name__}: expected subnet "
                        f"{self._proposed} of {self._num_subnets}, found it waiting although it "
                        f"was told every score"
                    )
                break
            found.append(tuple(subnet))
            self._proposed += 1
        return found


class KeptStrategy:
    """A strategy that is used directly instead of a copy, even if its stream is restarted.

    A restarted stream requests the same subnets and reports the same scores up to the point where
    it was interrupted. The strategy is called only once for each; until that point, its recorded
    answers are returned.

    Args:
        strategy: a strategy that has not proposed anything yet.
        name: its name in messages.
    """

    def __init__(self, strategy: ExplorationStrategy, name: str) -> None:
        self._strategy = strategy
        self._name = name
        self._calls: list[str] = []
        self._answers: list[Sequence[int] | None] = []
        self._place = 0

    def begin(self) -> KeptStrategy:
        """Restart at the beginning of the stream; returns itself."""
        self._place = 0
        return self

    def propose(self, sequence_id: int) -> Sequence[int] | None:
        asked = f"asked for subnet {sequence_id}"
        found: Sequence[int] | None = self._call(asked, self._strategy.propose, sequence_id)
        return found

    def observe(self, sequence_id: int, score: float) -> None:
        told = f"told {float(score)!r} of subnet {sequence_id}"
        self._call(told, self._strategy.observe, sequence_id, score)

    def finish(self) -> None:
        """End the stream: calls the strategy's own ``finish`` method, if it has one."""
        if finish := getattr(self._strategy, "finish", None):
            finish()

    def _call(self, call: str, method: Any, *arguments: Any) -> Any:
        if self._place == len(self._calls):
            answer = method(*arguments)
            self._calls.append(call)
            self._answers.append(answer)
        elif self._calls[self._place] != call:
            raise ConfigError(
                f"strategy {self._name}: expected an object that has explored nothing yet, found "
                f"one that was {self._calls[self._place]} before and is {call} now; make one for "
                f"each stream"
            )
        self._place += 1
        return self._answers[self._place - 1]

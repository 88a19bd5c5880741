"""One strategy object for all lives of a run: what it said before is said again, never asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from naspipe.core.errors import ConfigError
from naspipe.streams.ports import ExplorationStrategy


class KeptStrategy:
    """A strategy that is used as it is, not a copy of it, however often its stream begins anew.

    A stream that begins anew asks for the same subnets and tells the same scores up to where it
    was cut. The strategy hears of each only once; until then it answers as it did.

    Args:
        strategy: one that has proposed nothing yet.
        name: how messages call it.
    """

    def __init__(self, strategy: ExplorationStrategy, name: str) -> None:
        self._strategy = strategy
        self._name = name
        self._calls: list[str] = []
        self._answers: list[Sequence[int] | None] = []
        self._place = 0

    def begin(self) -> KeptStrategy:
        """The stream's beginning; returns itself."""
        self._place = 0
        return self

    def propose(self, sequence_id: int) -> Sequence[int] | None:
        """See :class:`ExplorationStrategy`; raises as :meth:`observe`."""
        asked = f"asked for subnet {sequence_id}"
        found: Sequence[int] | None = self._call(asked, self._strategy.propose, sequence_id)
        return found

    def observe(self, sequence_id: int, score: float) -> None:
        """See :class:`ExplorationStrategy`.

        Raises:
            ConfigError: when it was told another score: this is another stream.
        """
        told = f"told {float(score)!r} of subnet {sequence_id}"
        self._call(told, self._strategy.observe, sequence_id, score)

    def finish(self) -> None:
        """The stream is complete: a strategy that has something to end may end it."""
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

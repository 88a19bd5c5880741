"""Compute the scores of the first and the best subnet of a search again, and compare the bits.

A process is forked from the launcher before any stage computes. It is asked for subnets while the
search goes on, and scores each as a plain network (:mod:`naspipe.verification.plain_scores`).
"""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from naspipe.config.errors import VerificationError
from naspipe.search.scores import Scores
from naspipe.verification.plain_process import PlainProcess
from naspipe.verification.plain_scores import LEFT, RESET, PlainScore, PlainScores
from naspipe.verification.verifier import SHARE

LEAST_SECONDS = 60.0
"""At the end of a search the launcher waits for the plain scores for :data:`SHARE` of the time that
the search took, but at least for so many seconds."""

_STATISTICS = {
    LEFT: "running statistics were not taken again: the score is that of the run's own",
    RESET: "running statistics were not taken: the score is that of mean 0 and variance 1",
}
"""What is said of a score that a subnet has with other statistics."""


@dataclass(frozen=True, slots=True)
class VerifiedScores:
    """How many scores of a search were verified."""

    scores: int
    """Those that have the bits of the plain network."""
    because: str = ""
    """Why they are not more, or none; empty if all were compared that were asked for."""

    def __str__(self) -> str:
        if not self.scores:
            return f"verified: no, {self.because}"
        count = f"{self.scores} score{'s' * (self.scores > 1)}"
        return f"verified: {count}, 0 bits differ" + (f" ({self.because})" if self.because else "")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        return {"scores": self.scores, **({"because": self.because} if self.because else {})}


class ScoreVerifier:
    """Compares scores with those of plain networks; a context manager.

    Args:
        make: makes what scores plainly, in the forked process.
        threads: intra-op threads of that process.
        because: why a verified score does not say everything, if so.
        patience: how many seconds to wait at the end; None for a share of the search's time.
    """

    def __init__(
        self,
        make: Callable[[], PlainScores],
        threads: int,
        because: str = "",
        patience: float | None = None,
    ) -> None:
        self._patience = patience
        self._make = make
        self._plain = PlainProcess(self._score, threads, "plain network")
        self._start = time.monotonic()
        self._waiting: dict[int, tuple[tuple[int, ...], Scores]] = {}
        self._verified: set[int] = set()
        self._because = because

    def _score(self, launcher: Connection) -> Iterator[Mapping[str, Any]]:
        return _answers(self._make(), launcher)

    def __enter__(self) -> Self:
        self._plain.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._plain.end()

    def ask(self, subnet: int, choices: Sequence[int], scores: Scores) -> None:
        """Have the score of a subnet computed again. Each subnet is asked for once."""
        if not self._plain.is_running or subnet in self._waiting or subnet in self._verified:
            return
        self._waiting[subnet] = tuple(choices), scores
        request = {"subnet": subnet, "choices": list(choices), "scores": _texts(scores)}
        self._plain.send(request)

    def poll(self, seconds: float = 0.0) -> None:
        """Compare what has come, and wait for more for so long.

        Raises:
            VerificationError: at a difference.
        """
        for answer in self._plain.answers(seconds):
            if because := answer.get("because"):
                self._give_up(because)
            else:
                self._compare(answer)

    def finish(self) -> VerifiedScores:
        """Wait for the answers, within a bound; returns how many scores were verified.

        Raises:
            VerificationError: at a difference.
        """
        share = max(LEAST_SECONDS, SHARE * (time.monotonic() - self._start))
        deadline = time.monotonic() + (share if self._patience is None else self._patience)
        while self._waiting and self._plain.is_running:
            left = deadline - time.monotonic()
            if left <= 0:
                self._give_up("because the plain network took too long")
            else:
                self.poll(left)
        self._plain.end()
        return VerifiedScores(len(self._verified), self._because)

    def _compare(self, answer: Mapping[str, Any]) -> None:
        """Take an answer.

        Raises:
            VerificationError: when a score has other bits than the search found.
        """
        subnet = int(answer["subnet"])
        choices, found = self._waiting.pop(subnet)
        for name, text in answer["scores"].items():
            expected, here = float(text), float(getattr(found, name))
            if bits_of(expected) != bits_of(here):
                likely = f"; {answer['likely']}" if answer["likely"] else ""
                raise VerificationError(
                    f"subnet {subnet} ({','.join(map(str, choices))}): expected the {name} of the "
                    f"plain network, {expected!r}, found {here!r} in the search{likely}"
                )
        self._verified.add(subnet)

    def _give_up(self, because: str) -> None:
        self._because = because
        self._plain.end()


def bits_of(score: float) -> bytes:
    """What two scores are compared by; all values that are no numbers are one."""
    return b"nan" if math.isnan(score) else struct.pack(">d", score)


def _texts(scores: Scores | PlainScore) -> dict[str, str]:
    """The scores that a plain network has, exactly."""
    return {name: repr(float(getattr(scores, name))) for name in PlainScore._fields}


def _answers(plain: PlainScores, requests: Connection) -> Iterator[dict[str, Any]]:
    """Answer requests, in the process of the verifier."""
    while True:
        request = json.loads(requests.recv_bytes())
        choices, found = request["choices"], request["scores"]
        scores = _texts(plain.of(choices))
        likely = "" if scores == found else _likely(plain, choices, found)
        yield {"subnet": request["subnet"], "scores": scores, "likely": likely}


def _likely(plain: PlainScores, choices: Sequence[int], found: Mapping[str, str]) -> str:
    """Why a search found these scores, if that can be seen."""
    for statistics, reason in _STATISTICS.items():
        if _texts(plain.of(choices, statistics)) == found:
            return reason
    return ""

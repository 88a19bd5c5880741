"""Record a search: one line per subnet in sequence order, and the manifest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from naspipe.api.recording import Pulse, ResidentMemory
from naspipe.api.search_parts import Pricer
from naspipe.launch.claim import Claim
from naspipe.search.scores import Scores
from naspipe.search.search_directory import Candidate, SearchDirectory, front, rank
from naspipe.search.strategies import COSTS
from naspipe.verification.plain_scores import ScoreVerifier, VerifiedScores


class SearchObserver(Protocol):
    """Receives the results of a search as they arrive."""

    def on_candidate(self, candidate: Candidate, best: Candidate | None) -> None:
        """Called for each judged subnet, in sequence order; ``best`` is the best one so far."""
        ...

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """Called with the compute time of a stage so far, and the time since the start."""
        ...


class SilentSearchObserver:
    """An observer that ignores everything."""

    def on_candidate(self, candidate: Candidate, best: Candidate | None) -> None: ...

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None: ...


class Recorder:
    """Takes scores in any order, writes candidates in sequence order, and has scores verified.

    The first score and the best one are verified. ``manifest`` holds the entries known before the
    search; the ``directory`` must exist.
    """

    def __init__(
        self,
        directory: SearchDirectory,
        score: str,
        pricer: Pricer,
        observer: SearchObserver,
        manifest: Mapping[str, Any],
    ) -> None:
        self._directory = directory
        self._score = score
        self._pricer = pricer
        self._observer = observer
        self._manifest = dict(manifest)
        self._verifier: ScoreVerifier | None = None
        self._has_first = False
        self._waiting: dict[int, Scores] = {}
        self._choices_of: Callable[[int], tuple[int, ...]] = lambda number: ()
        self.best: Candidate | None = None
        self._memory = ResidentMemory()
        self._start_ns = 0
        self.candidates: list[Candidate] = []
        self.stages: list[dict[str, Any]] = []
        """The measurements of the stages."""

    @contextmanager
    def recording(
        self, choices_of: Callable[[int], tuple[int, ...]], verifier: ScoreVerifier | None
    ) -> Iterator[None]:
        """Record the search while this context is entered; the manifest then has the outcome.

        ``choices_of`` returns the choices of a subnet by its number.
        """
        self._choices_of, self._verifier = choices_of, verifier
        self._directory.candidates.touch()
        self._directory.write_manifest({**self._manifest, "status": "running"})
        start_ns = self._start_ns = time.monotonic_ns()
        try:
            with Claim(self._directory.path), Pulse([self._directory.path], self._vitals):
                yield
        except BaseException as error:
            failure = {"status": "failed", "failure": str(error) or type(error).__name__}
            with suppress(OSError):  # keep the original error
                self._directory.write_manifest({**self._manifest, **failure})
            raise
        seconds = (time.monotonic_ns() - start_ns) / 1e9
        self._directory.write_manifest(
            {
                **self._manifest,
                "status": "complete",
                "finished": time.time(),
                "measured": {
                    "seconds": seconds,
                    "subnets_per_second": len(self.candidates) / seconds,
                    "stages": self.stages,
                },
                **self._found(),
            }
        )

    def note(self, **found: Any) -> None:
        """Add entries to the manifest of the search."""
        self._manifest |= found
        self._directory.write_manifest({**self._manifest, "status": "running"})

    def _vitals(self, stream: int) -> dict[str, Any]:
        """Return the values of a heartbeat, as for a run whose steps are subnets."""
        seconds = (time.monotonic_ns() - self._start_ns) / 1e9
        return {
            "step": len(self.candidates),
            "steps": self._manifest.get("definition", {}).get("budget"),
            "steps_per_second": len(self.candidates) / seconds if seconds else None,
            "pending": None,
            "resident_bytes": self._memory.bytes(),
            "loss": None,
        }

    def on_scores(self, subnet: int, scores: Scores) -> None:
        self._waiting[subnet] = scores
        while (number := len(self.candidates)) in self._waiting:
            choices = self._choices_of(number)
            candidate = Candidate(
                number, choices, self._waiting.pop(number), self._pricer.of(choices)
            )
            self.candidates.append(candidate)
            self._directory.append(candidate)
            self.best = next(iter(rank([*filter(None, [self.best]), candidate], self._score)), None)
            self._observer.on_candidate(candidate, self.best)

        if self._verifier is not None:
            if not self._has_first:
                self._has_first = True
                self._verifier.ask(subnet, self._choices_of(subnet), scores)
            self._verifier.poll()

    def finish(self) -> VerifiedScores:
        """Verify the best subnet; return the number of verified scores.

        Raises:
            VerificationError: if a score is not bitwise equal to that of the plain network.
        """
        if self._verifier is None:
            return VerifiedScores(0, f"because no plain network computes the score {self._score}")
        if self.best is not None:
            self._verifier.ask(self.best.sequence_id, self.best.choices, self.best.scores)
        return self._verifier.finish()

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        self._observer.on_busy(stage, busy_ns, elapsed_ns)

    def _found(self) -> dict[str, Any]:
        """Return the head of the ranking, and the front for each cost, as numbers of subnets."""
        ranked = rank(self.candidates, self._score)
        fronts = {
            name: [each.sequence_id for each in front(self.candidates, self._score, name)]
            for name in COSTS
        }
        return {"top": [each.sequence_id for each in ranked[:10]], "fronts": fronts}

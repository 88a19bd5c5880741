"""Choose the scores of a search that are verified, and report the result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from naspipe.frontend.display.bar import Bar
from naspipe.frontend.search.estimates import proxies_in
from naspipe.frontend.search.search_record import Recorder
from naspipe.runtime.evaluating.evaluation_stage import EvaluationJob
from naspipe.runtime.jobs.evaluation_recipe import EvaluationRecipe
from naspipe.search.scores import Scores, parts_of
from naspipe.search.search_directory import Search
from naspipe.trace.snapshots.snapshot import Checkpoint
from naspipe.verification.plain_scores import PlainScores
from naspipe.verification.score_verifier import ScoreVerifier, VerifiedScores


def verifier_of(
    job: EvaluationJob, recipe: EvaluationRecipe, checkpoint: Checkpoint, score: str
) -> AbstractContextManager[ScoreVerifier | None]:
    """The verifier of a search, to be entered before any stage is forked; None if no score is to be
    compared or none can be.
    """
    asked = job.execution.verification
    if asked.verify == "0" or not _judged_by_stages(score):
        return nullcontext()
    device = job.execution.hardware.device.partition(":")[0]
    make = partial(PlainScores, recipe, checkpoint, device, job.evaluation.calibration)
    proxies = " and ".join(proxies_in(score))
    because = f"without {proxies}" if proxies else ""
    patience = job.execution.watch.timeout_seconds if asked.waits else None
    return ScoreVerifier(make, job.threads, because, patience)


def _judged_by_stages(score: str) -> bool:
    return score != "bleu" and len(proxies_in(score)) < len(parts_of(score))


class FirstAndBest:
    """Hands scores to a search's recorder, and has the first and the best one verified.

    Args:
        recorder: of the search; see :class:`naspipe.runtime.evaluating.ports.ScoreObserver`.
        verifier: computes scores again.
        choices_of: the choices of a subnet by its number.
    """

    def __init__(
        self,
        recorder: Recorder,
        verifier: ScoreVerifier | None,
        choices_of: Callable[[int], tuple[int, ...]],
    ) -> None:
        self._recorder, self._verifier, self._choices_of = recorder, verifier, choices_of
        self._has_first = False

    def on_scores(self, subnet: int, scores: Scores) -> None:
        """A subnet is judged.

        Raises:
            VerificationError: when an earlier score has other bits than the plain network's.
        """
        self._recorder.on_scores(subnet, scores)
        if self._verifier is not None:
            if not self._has_first:
                self._has_first = True
                self._verifier.ask(subnet, self._choices_of(subnet), scores)
            self._verifier.poll()

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """A stage says how busy it is."""
        self._recorder.on_busy(stage, busy_ns, elapsed_ns)

    def finish(self, score: str) -> VerifiedScores:
        """Verify the best subnet; returns how many scores are verified.

        Raises:
            VerificationError: when a score has other bits than the plain network's.
        """
        if self._verifier is None:
            return VerifiedScores(0, f"because no plain network computes the score {score}")
        if (best := self._recorder.best) is not None:
            self._verifier.ask(best.sequence_id, best.choices, best.scores)
        return self._verifier.finish()


def note_verified(search: Search, bar: Bar) -> None:
    """Say how many scores of a search were verified, if any were to be."""
    if (found := search.manifest.get("verified")) is not None:
        bar.note(str(VerifiedScores(found["scores"], found.get("because", ""))))

"""How the subnets of a search come to their scores: on stages, in this process, or both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any

from naspipe.config.space import Shared, Space
from naspipe.frontend.given.strategy_source import StrategySource
from naspipe.frontend.search.estimates import Estimates, proxies_in
from naspipe.frontend.search.scoring_here import score_here
from naspipe.runtime.evaluating.evaluation_stage import EvaluationJob
from naspipe.runtime.evaluating.ports import ScoreObserver
from naspipe.runtime.evaluating.score_sheet import ScoreSheet
from naspipe.runtime.processes.evaluation_launcher import evaluate
from naspipe.search.scores import Scores, parts_of, told_merit
from naspipe.search.standard_scores import SAMPLE, StandardScores

_UNKNOWN = Scores(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """Judges subnets by one score.

    What proxies say, and BLEU, is found in this process. The rest is found by the stages.
    """

    score: str
    space: Space
    estimates: Estimates | None = None
    """Where the score needs them."""
    bleu: Callable[[Sequence[int]], float] | None = None
    """Decodes with a subnet of these choices, where that is the score."""

    def standard(
        self, job: EvaluationJob, sample: Callable[[], StrategySource]
    ) -> StandardScores | None:
        """What a sum of scores is measured by; None for a single score.

        Args:
            job: of the search.
            sample: makes what proposes the subnets to compare with.

        Raises:
            ConfigError: when a part of the sum is the same for all of them.
        """
        if len(parts_of(self.score)) == 1:
            return None
        found = ScoreSheet()
        self.run(replace(job, budget=SAMPLE), sample(), found)
        scores = [found.scores[number] for number in sorted(found.scores)]
        return StandardScores.of_sample(self.score, scores)

    def run(
        self,
        job: EvaluationJob,
        source: StrategySource,
        observer: ScoreObserver,
        standard: StandardScores | None = None,
    ) -> list[dict[str, Any]]:
        """Judge every subnet that a source proposes; returns what stages measured.

        Args:
            job: what stages are told, but for the source.
            source: proposes the subnets.
            observer: told of each subnet.
            standard: adds up a sum of scores.

        Raises:
            ConfigError, StageFailedError: as :func:`evaluate`.
        """

        def completed(number: int, scores: Scores) -> Scores:
            choices = self._choices(source, number)
            if self.bleu is not None:
                scores = scores._replace(bleu=self.bleu(choices))
            if self.estimates is not None:
                scores = self.estimates.added(choices, scores)
            return scores if standard is None else standard.added(scores)

        told = partial(told_merit, score=self.score)
        if self.bleu is None and len(proxies_in(self.score)) < len(parts_of(self.score)):
            return evaluate(replace(job, source=source), observer, told, completed=completed)
        score_here(source, job.budget, lambda n: completed(n, _UNKNOWN), told, observer)
        return []

    def choices_of(self, source: StrategySource) -> Callable[[int], tuple[int, ...]]:
        """The choices of a source's subnets by their numbers."""
        return partial(self._choices, source)

    def _choices(self, source: StrategySource, number: int) -> tuple[int, ...]:
        is_choice = [not isinstance(block, Shared) for block in self.space.blocks]
        return tuple(compress(source.subnets[number].chain, is_choice))

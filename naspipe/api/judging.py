"""Compute the scores of a search's subnets: on stages, in this process, or both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any

import torch

from naspipe.config.blocks import Shared
from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.evaluation.evaluation import ScoreObserver, ScoreSheet
from naspipe.evaluation.evaluation_stage import EvaluationJob
from naspipe.evaluation.proxies import Naswot, Synflow
from naspipe.inputs.subnet_sources import StrategySource, sample_stream
from naspipe.jobs.workload import EvaluationRecipe
from naspipe.launch.evaluation import evaluate
from naspipe.search.scores import PROXIES, SAMPLE, Scores, StandardScores, parts_of, told_merit
from naspipe.store.checkpoints import Checkpoint
from naspipe.verification.plain_scores import PlainScores, ScoreVerifier

_KINDS: Mapping[str, type[Synflow] | type[Naswot]] = {"synflow": Synflow, "naswot": Naswot}


def proxies_in(score: str) -> tuple[str, ...]:
    return tuple(part for part in parts_of(score) if part in PROXIES)


class Estimates:
    """The proxies of one search on the first batch of its run; each subnet is estimated once."""

    def __init__(
        self,
        score: str,
        space: Space,
        seed: int,
        threads: int,
        batch: Mapping[str, torch.Tensor],
    ) -> None:
        self._space = space
        self._proxies = {
            name: _KINDS[name](space, seed, threads, batch) for name in proxies_in(score)
        }
        self._known: dict[tuple[int, ...], dict[str, float]] = {}

    def check(self) -> None:
        """Reject proxies that give the same estimate for every subnet of the space."""
        for proxy in self._proxies.values():
            if isinstance(proxy, Synflow):
                proxy.check(sample_stream(self._space)[0])
            elif not any(map(proxy.units, sample_stream(self._space))):
                raise ConfigError(
                    f"score naswot: expected layers with ReLU, ReLU6 or leaky ReLU, whose signs it "
                    f"compares, found none in space {self._space.name}; use --score synflow or loss"
                )

    def added(self, choices: Sequence[int], scores: Scores) -> Scores:
        """Return the scores of a subnet with those of the proxies added."""
        key = tuple(choices)
        if key not in self._known:
            self._known[key] = {name: each(key) for name, each in self._proxies.items()}
        return scores._replace(**self._known[key])


_UNKNOWN = Scores(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """Computes one score of subnets: proxies and BLEU in this process, the rest on the stages."""

    score: str
    space: Space
    estimates: Estimates | None = None
    """Present if the score needs proxies."""
    bleu: Callable[[Sequence[int]], float] | None = None
    """Decodes with a subnet of the given choices and returns its BLEU, if that is the score."""

    def standard(
        self, job: EvaluationJob, sample: Callable[[], StrategySource]
    ) -> StandardScores | None:
        """Return the scale for a sum of scores, from ``sample``; None for a single score.

        Raises:
            ConfigError: if a term of the sum is the same for all of them.
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
        """Score every subnet that a source proposes; return the measurements of the stages.

        ``standard`` computes sums of scores.
        """
        choices_of = self.choices_of(source)

        def completed(number: int, scores: Scores) -> Scores:
            choices = choices_of(number)
            if self.bleu is not None:
                scores = scores._replace(bleu=self.bleu(choices))
            if self.estimates is not None:
                scores = self.estimates.added(choices, scores)
            return scores if standard is None else standard.added(scores)

        told = partial(told_merit, score=self.score)
        if self.bleu is None and len(proxies_in(self.score)) < len(parts_of(self.score)):
            return evaluate(replace(job, source=source), observer, told, completed=completed)
        try:
            source.begin(0, ())
            for number in range(job.budget):
                scores = completed(number, _UNKNOWN)
                observer.on_scores(number, scores)
                source.take(number, told(scores))
        finally:
            source.close()
        return []

    def choices_of(self, source: StrategySource) -> Callable[[int], tuple[int, ...]]:
        """Return a function from a subnet's number in ``source`` to its choices."""
        is_choice = [not isinstance(block, Shared) for block in self.space.blocks]
        return lambda number: tuple(compress(source.subnets[number].chain, is_choice))


def verifier_of(
    job: EvaluationJob, recipe: EvaluationRecipe, checkpoint: Checkpoint, score: str
) -> AbstractContextManager[ScoreVerifier | None]:
    """Return the verifier of a search, which must be entered before any stage is forked.

    It yields None if verification is off or no plain network computes the score.
    """
    asked = job.execution.verification
    if asked.verify == "0" or score == "bleu" or len(proxies_in(score)) == len(parts_of(score)):
        return nullcontext()
    device = job.execution.hardware.device.partition(":")[0]
    make = partial(PlainScores, recipe, checkpoint, device, job.evaluation.calibration)
    proxies = " and ".join(proxies_in(score))
    because = f"without {proxies}" if proxies else ""
    patience = job.execution.watch.timeout_seconds if asked.waits else None
    return ScoreVerifier(make, job.threads, because, patience)

"""Judges subnets one after the other in this process, where the pipeline cannot."""

from __future__ import annotations

from collections.abc import Callable

from naspipe.runtime.evaluating.ports import ScoreObserver
from naspipe.runtime.jobs.ports import SubnetSource
from naspipe.search.scores import Scores


def score_here(
    source: SubnetSource,
    budget: int,
    judge: Callable[[int], Scores],
    told: Callable[[Scores], float],
    observer: ScoreObserver,
) -> None:
    """Score every subnet that a source proposes.

    Args:
        source: of subnets.
        budget: subnets in all.
        judge: the scores of a subnet by its number.
        told: what the source is told of them: more is better.
        observer: told of each.
    """
    try:
        source.begin(0, ())
        for number in range(budget):
            scores = judge(number)
            observer.on_scores(number, scores)
            source.take(number, told(scores))
    finally:
        source.close()

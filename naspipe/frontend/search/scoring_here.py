"""Judges subnets one after the other in this process, where the pipeline cannot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from naspipe.frontend.search.search_record import Recorder
from naspipe.runtime.jobs.ports import SubnetSource
from naspipe.search.scores import Scores


def score_here(
    source: SubnetSource,
    choices_of: Callable[[int], Sequence[int]],
    budget: int,
    judge: Callable[[Sequence[int]], float],
    recorder: Recorder,
) -> None:
    """Score every subnet that a source proposes by BLEU.

    Args:
        source: of subnets.
        choices_of: a subnet's choices by its number.
        budget: subnets in all.
        judge: BLEU of a subnet.
        recorder: told of each.
    """
    try:
        source.begin(0, ())
        for number in range(budget):
            bleu = judge(choices_of(number))
            recorder.on_scores(number, Scores(math.nan, math.nan, math.nan, bleu))
            source.take(number, bleu)
    finally:
        source.close()

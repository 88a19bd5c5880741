"""Which subnets a step trains, by the scores of its probes: the strategy alone."""

from __future__ import annotations

import math
from itertools import count

import pytest

from naspipe.config.errors import ConfigError
from naspipe.config.recipe import Recipe
from naspipe.config.steps import Steps, parse_passes, recorded_steps, with_probes
from naspipe.streams.feedback import FeedbackLoop
from naspipe.streams.passes import ProbingStrategy


def strategy(text: str, passes: str) -> tuple[ProbingStrategy, Steps]:
    """It draws (0,), (1,), ... and trains what was kept and nothing else."""
    steps = with_probes(parse_passes(passes), text)
    return ProbingStrategy(((n,) for n in count()), steps, lambda kept: list(kept)), steps


@pytest.mark.parametrize(("text", "kept"), [("best:3", [(1,), (3,)]), ("worst:3", [(2,), (5,)])])
def test_the_best_or_the_worst_of_each_draw(text: str, kept: list[tuple[int]]) -> None:
    proposing, _ = strategy(text, "subnets:2")
    loop = FeedbackLoop(proposing, 100, 16)
    assert loop.start() == [(n,) for n in range(6)]
    found = []
    for number, score in enumerate([-2.0, -1.0, -3.0, 0.5, 0.25, -0.25]):
        assert found == []
        found = loop.take(number, score)
    assert found == [*kept, *((n,) for n in range(6, 12))]


def test_the_first_of_equals_and_never_what_is_no_number() -> None:
    for text in ("best:3", "worst:3"):
        proposing, _ = strategy(text, "one")
        loop = FeedbackLoop(proposing, 100, 4)
        loop.start()
        found = [loop.take(number, score) for number, score in enumerate([math.nan, 1.0, 1.0])]
        assert found[-1][0] == (1,)
        proposing, _ = strategy(text, "one")
        loop = FeedbackLoop(proposing, 100, 4)
        loop.start()
        found = [loop.take(number, math.nan) for number in range(3)]
        assert found[-1][0] == (0,)
        proposing, _ = strategy(text, "one")
        loop = FeedbackLoop(proposing, 100, 4)
        loop.start()
        scores = [math.nan, -math.inf, math.nan]
        assert [loop.take(*each) for each in enumerate(scores)][-1][0] == (1,)


@pytest.mark.parametrize(
    ("passes", "draws", "trained", "batches"),
    [
        ("one", 1, 1, [1, 1, 1]), ("accumulate:2", 1, 2, [2, 2, 2, 3]),
        ("subnets:2", 2, 2, [2, 2, 3, 3, 2, 3]), ("sandwich:1", 1, 3, [1] * 5),
    ],
)  # fmt: skip
def test_the_passes_of_a_step(passes: str, draws: int, trained: int, batches: list[int]) -> None:
    steps = with_probes(parse_passes(passes), "best:2")
    assert (steps.draws, steps.trained, steps.probes) == (draws, trained, 2 * draws)
    own = range(steps.passes, 2 * steps.passes)
    assert [steps.batch(y) for y in own] == batches
    assert [steps.is_probe(y) for y in own] == [y < steps.passes + steps.probes for y in own]
    assert [steps.pass_of(y) for y in own][steps.probes :] == list(range(trained))
    places = [steps.place(y) for y in own]
    assert places[: steps.probes] == [{"probe": n} for n in range(steps.probes)]
    assert places[steps.probes :] == [{"pass": n} for n in range(trained)]
    recipe = Recipe(passes=passes, probes="best:2")
    assert recipe.steps == steps == recorded_steps({"passes": passes, "probes": "best:2"})


@pytest.mark.parametrize("text", ["", "best", "best:0", "most:2", "best:2:3", "worst:1001"])
def test_what_are_no_probes(text: str) -> None:
    with pytest.raises(ConfigError, match=r"probes: expected none, best:K or worst:K"):
        Recipe(probes=text)


def test_a_fair_round_has_none() -> None:
    with pytest.raises(ConfigError, match=r"probes=best:2: expected passes that draw subnets"):
        Recipe(passes="fair", probes="best:2")

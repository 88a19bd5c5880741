"""Search strategies of naspipe's own, by name.

Each is an :class:`naspipe.streams.ports.ExplorationStrategy`: seeded, and told scores in
sequence order, so the same seed proposes the same subnets on any number of stages.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from naspipe.config.errors import ConfigError
from naspipe.config.text import did_you_mean
from naspipe.search.greedy import GreedyPool
from naspipe.search.random_search import Allowed, Choices, RandomSearch, Scored
from naspipe.streams.ports import ExplorationStrategy


class Evolution(RandomSearch):
    """Regularized evolution (Real et al., AAAI'19): the oldest dies, whatever its score.

    Each child has the best of a few living parents as its first parent. Half of the children
    take each block from one of two such parents; then each block mutates with a small
    probability, at least one does. Scores that are not known yet are not waited for, so there
    is always a next subnet.

    Args:
        candidate_counts: of each choice block.
        seed: of every draw.
        is_allowed: the limits.
        population: subnets alive at a time; the first ones are drawn uniformly.
        tournament: parents to choose the best of.
        mutation: probability that a block changes.
    """

    def __init__(
        self,
        candidate_counts: Sequence[int],
        seed: int,
        is_allowed: Allowed = lambda choices: True,
        *,
        population: int = 50,
        tournament: int = 10,
        mutation: float = 0.1,
    ) -> None:
        super().__init__(candidate_counts, seed, is_allowed)
        if population < 1 or tournament < 1:
            raise ConfigError(
                f"evolution: expected a population and a tournament of 1 or more, "
                f"found {population} and {tournament}"
            )
        self._alive: deque[Scored] = deque(maxlen=population)
        self._population = population
        self._tournament = tournament
        self._mutation = mutation
        self._proposed: dict[int, Choices] = {}

    def propose(self, sequence_id: int) -> Choices:
        """See :class:`ExplorationStrategy`; raises as :meth:`RandomSearch.propose`."""
        is_born = sequence_id >= self._population and self._alive
        choices = self.first_allowed(self._child if is_born else self.draw)
        self._proposed[sequence_id] = choices
        return choices

    def observe(self, sequence_id: int, score: float) -> None:
        """A subnet joins the population; the oldest leaves once it is full."""
        known = -math.inf if math.isnan(score) else score
        self._alive.append(Scored(self._proposed.pop(sequence_id), known))

    def _child(self) -> Choices:
        child = list(self._parent())
        if self.random.random_sample() < 0.5:
            other = self._parent()
            child = [
                one if self.random.random_sample() < 0.5 else two
                for one, two in zip(child, other, strict=True)
            ]
        mutates = self.random.random_sample(len(child)) < self._mutation
        mutates[self.random.randint(len(child))] = True
        return tuple(
            int(self.random.randint(count)) if mutates[block] else child[block]
            for block, count in enumerate(self.counts)
        )

    def _parent(self) -> Choices:
        places = self.random.randint(len(self._alive), size=self._tournament)
        return max((self._alive[int(place)] for place in places), key=lambda s: s.score).choices


class Listed:
    """Given subnets, one after the other: nothing is drawn and nothing learnt."""

    def __init__(self, subnets: Sequence[Choices]) -> None:
        self._subnets = tuple(subnets)

    def propose(self, sequence_id: int) -> Choices:
        """See :class:`ExplorationStrategy`."""
        return self._subnets[sequence_id]

    def observe(self, sequence_id: int, score: float) -> None:
        """Nothing is learnt."""


STRATEGIES: dict[str, Callable[..., ExplorationStrategy]] = {
    "random": RandomSearch,
    "evolution": Evolution,
    "greedy": GreedyPool,
}


def options_of(name: str) -> list[str]:
    """The options that a strategy of naspipe's has; none of any other name."""
    if name not in STRATEGIES:
        return []
    parameters = inspect.signature(STRATEGIES[name]).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


def make_strategy(
    name: str,
    candidate_counts: Sequence[int],
    seed: int,
    is_allowed: Allowed,
    options: Mapping[str, float] | None = None,
) -> ExplorationStrategy:
    """A strategy by name; ``options`` are its own.

    Raises:
        ConfigError: for a name that is not registered, or an option that it does not have.
    """
    if name not in STRATEGIES:
        raise ConfigError(
            f"unknown strategy {name!r:.80}{did_you_mean(name, STRATEGIES)}: expected "
            f"{', '.join(STRATEGIES)}, all, nni:NAME as in nni:TPE, file:PATH or MODULE:FUNCTION"
        )
    known = options_of(name)
    for option in sorted(set(options or {}) - set(known)):
        raise ConfigError(
            f"strategy {name}: expected {', '.join(known) or 'no options'}, found {option!r:.80}"
        )
    return STRATEGIES[name](candidate_counts, seed, is_allowed, **(options or {}))

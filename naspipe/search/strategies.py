"""naspipe's own search strategies, by name, and the limits that they respect.

Each is an :class:`naspipe.streams.feedback.ExplorationStrategy`: seeded, with scores reported in
sequence order, so the same seed proposes the same subnets on any number of stages.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from numpy.random import RandomState

from naspipe.config.errors import ConfigError
from naspipe.config.text import did_you_mean
from naspipe.streams.feedback import ExplorationStrategy

Choices = tuple[int, ...]
"""One choice per choice block."""

Allowed = Callable[[Choices], bool]
"""Returns True if a subnet is within the limits (FLOPs, parameters, latency)."""

_TRIES = 10_000
"""Number of subnets drawn before the limits are considered impossible."""


class Scored(NamedTuple):
    """A subnet and its score; higher is better."""

    choices: Choices
    score: float


class RandomSearch:
    """Uniform draws among the subnets within the limits."""

    def __init__(
        self,
        candidate_counts: Sequence[int],
        seed: int,
        is_allowed: Allowed = lambda choices: True,
    ) -> None:
        self.counts = tuple(candidate_counts)
        self.random = RandomState(seed)
        self._is_allowed = is_allowed

    def propose(self, sequence_id: int) -> Choices:
        return self.first_allowed(self.draw)

    def observe(self, sequence_id: int, score: float) -> None:
        pass  # nothing is learned

    def draw(self) -> Choices:
        return tuple(int(self.random.randint(count)) for count in self.counts)

    def first_allowed(self, draw: Callable[[], Choices]) -> Choices:
        """Return the first draw that is within the limits."""
        for _ in range(_TRIES):
            choices = draw()
            if self._is_allowed(choices):
                return choices
        raise ConfigError(
            f"no subnet within the limits among {_TRIES} draws; raise flops, params or latency_ms "
            f"of the limits (--max-flops, --max-params, --max-latency-ms)"
        )


class GreedyPool(RandomSearch):
    """Greedy path filtering (You et al., CVPR'20): draws from a bounded pool of good paths.

    The scores of every ``group`` consecutive subnets are compared, and the best ``keep`` of them
    enter the pool, which holds the ``size`` best paths by their newest scores. A subnet is drawn
    uniformly from the pool with a probability that rises linearly from 0 to ``greed`` over the
    first ``growth`` subnets, and uniformly from all paths otherwise.

    The paper scores each group's paths on a small validation batch and trains only those that it
    keeps. Here every path is trained, and its score is reported by the run: during training, the
    negative loss of its step on its own batch. So filtering acts only through the pool, and scores
    carry the noise of batches; comparing only neighbours excludes the downward trend of the losses.

    Args:
        candidate_counts: see :class:`RandomSearch`.
        seed: see :class:`RandomSearch`.
        is_allowed: see :class:`RandomSearch`.
        size: number of paths in the pool (1,000 in the paper).
        group: number of subnets that are compared (10).
        keep: number of these that enter the pool (5).
        greed: maximum probability to draw from the pool (0.8).
        growth: number of subnets until that probability is reached.
    """

    def __init__(
        self,
        candidate_counts: Sequence[int],
        seed: int,
        is_allowed: Allowed = lambda choices: True,
        *,
        size: int = 1000,
        group: int = 10,
        keep: int = 5,
        greed: float = 0.8,
        growth: int = 1000,
    ) -> None:
        super().__init__(candidate_counts, seed, is_allowed)
        if not (1 <= keep <= group and size >= 1 and growth >= 1 and 0 <= greed <= 1):
            raise ConfigError(
                f"greedy: expected 1 <= keep <= group, size and growth of 1 or more and greed from "
                f"0 to 1, found keep {keep}, group {group}, size {size}, growth {growth}, greed "
                f"{greed}"
            )
        self._size, self._group, self._keep = size, group, keep
        self._greed, self._growth = greed, growth
        self._proposed: dict[int, Choices] = {}
        self._waiting: list[Scored] = []
        self._pool: dict[Choices, float] = {}
        """Paths and their scores; the most recently added path is at the end."""

    @property
    def pool(self) -> list[Scored]:
        """The good paths, the best first; among equally good ones, the newest first."""
        newest_first = [Scored(*item) for item in reversed(self._pool.items())]
        return sorted(newest_first, key=lambda scored: -scored.score)

    def propose(self, sequence_id: int) -> Choices:
        chance = self._greed * min(1.0, sequence_id / self._growth)
        is_greedy = self.random.random_sample() < chance and self._pool
        if is_greedy:
            choices = list(self._pool)[self.random.randint(len(self._pool))]
        else:
            choices = self.first_allowed(self.draw)
        self._proposed[sequence_id] = choices
        return choices

    def observe(self, sequence_id: int, score: float) -> None:
        """Add the best of each group to the pool; the worst of the pool leave once it is full."""
        known = -math.inf if math.isnan(score) else score
        self._waiting.append(Scored(self._proposed.pop(sequence_id), known))
        if len(self._waiting) == self._group:
            ranked = sorted(self._waiting, key=lambda scored: -scored.score)
            self._waiting = []
            for choices, value in reversed(ranked[: self._keep]):
                self._pool.pop(choices, None)
                self._pool[choices] = value
            for worst in self.pool[self._size :]:
                del self._pool[worst.choices]


class Evolution(RandomSearch):
    """Regularized evolution (Real et al., AAAI'19): the oldest subnet dies, whatever its score.

    Each child has the best of a few living subnets as its first parent. Half of the children take
    each block from one of two such parents; then each block mutates with a small probability, but
    at least one does. The strategy does not wait for unknown scores, so a next subnet is always
    available.

    Args:
        candidate_counts: number of candidates of each choice block.
        seed: the seed of all draws.
        is_allowed: returns True if a subnet is within the limits.
        population: number of living subnets; the first ones are drawn uniformly.
        tournament: number of subnets from which a parent is chosen.
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
        is_born = sequence_id >= self._population and self._alive
        choices = self.first_allowed(self._child if is_born else self.draw)
        self._proposed[sequence_id] = choices
        return choices

    def observe(self, sequence_id: int, score: float) -> None:
        """Add a subnet to the population; the oldest leaves once it is full."""
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
    """A given list of subnets, in order: nothing is drawn or learned."""

    def __init__(self, subnets: Sequence[Choices]) -> None:
        self._subnets = tuple(subnets)

    def propose(self, sequence_id: int) -> Choices:
        return self._subnets[sequence_id]

    def observe(self, sequence_id: int, score: float) -> None:
        pass  # nothing is learned


STRATEGIES: dict[str, Callable[..., ExplorationStrategy]] = {
    "random": RandomSearch,
    "evolution": Evolution,
    "greedy": GreedyPool,
}


def options_of(name: str) -> list[str]:
    """Return the options of one of naspipe's own strategies; empty for any other name."""
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
    """Create a strategy by name; ``options`` are its own."""
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


_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}

COSTS = ("flops", "params", "latency_ms")
"""The costs for which fronts are computed."""


class Cost(NamedTuple):
    """The costs of one subnet; NaN if not known."""

    flops: float
    """Operations of the forward of one sample in matrix products and convolutions."""
    params: float
    latency_ms: float
    """Time of the forward of one batch on one stage, as the sum over its layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The maximum costs of a subnet; 0 for no limit."""

    flops: float = 0.0
    params: float = 0.0
    latency_ms: float = 0.0

    def __post_init__(self) -> None:
        for name in COSTS:
            limit = getattr(self, name)
            if not (math.isfinite(limit) and limit >= 0):
                raise ConfigError(
                    f"--max-{name.replace('_', '-')}: expected a positive number, found {limit!r}"
                )

    def allow(self, cost: Cost) -> bool:
        """Return True if a subnet is within all limits; an unknown cost exceeds its limit."""
        return all(
            not getattr(self, name) or getattr(cost, name) <= getattr(self, name) for name in COSTS
        )


def parse_count(text: str, what: str) -> float:
    """Parse a number such as ``25M``, ``1.5G`` or ``40000``; errors call it ``what``."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgt]?)", text.strip().lower())
    value = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not value:
        raise ConfigError(f"{what}: expected a number such as 25M or 1.5G, found {text!r:.80}")
    return value

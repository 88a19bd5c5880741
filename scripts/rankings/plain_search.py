"""Searches without a supernet: each network that is proposed is trained alone, for a short time.

``judge`` gives the loss of an architecture; less is better. Both are pure functions of their
seed and of the losses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from numpy.random import RandomState

from scripts.rankings.cell_networks import EDGES, OPERATIONS, reads_input, terms_of
from scripts.rankings.cell_space import Architecture

Judge = Callable[[Architecture], float]
Judged = list[tuple[float, Architecture]]
"""Losses and architectures, in the order in which they were proposed."""

POPULATION, TOURNAMENT = 10, 3


def random_architecture(draws: RandomState) -> Architecture:
    """Any whose output depends on the input."""
    while True:
        found = tuple(draws.randint(len(OPERATIONS), size=len(EDGES)).tolist())
        if reads_input(terms_of(found)):
            return found


def mutated(parent: Architecture, draws: RandomState) -> Architecture:
    """Another operation on one edge, such that the output depends on the input."""
    while True:
        edge, step = int(draws.randint(len(EDGES))), int(draws.randint(1, len(OPERATIONS)))
        operation = (parent[edge] + step) % len(OPERATIONS)
        found = (*parent[:edge], operation, *parent[edge + 1 :])
        if reads_input(terms_of(found)):
            return found


def random_search(judge: Judge, budget: int, seed: int) -> Judged:
    """So many architectures, drawn uniformly."""
    draws = RandomState(seed)
    drawn = [random_architecture(draws) for _ in range(budget)]
    return [(judge(each), each) for each in drawn]


def regularised_evolution(judge: Judge, budget: int, seed: int) -> Judged:
    """The best of a few of the youngest has a child, and the oldest dies (Real et al. 2019)."""
    draws = RandomState(seed)
    found: Judged = []
    alive: deque[tuple[float, Architecture]] = deque(maxlen=POPULATION)
    while len(found) < budget:
        if len(found) < POPULATION:
            proposed = random_architecture(draws)
        else:
            few = draws.choice(len(alive), TOURNAMENT, replace=False).tolist()
            proposed = mutated(min(alive[place] for place in few)[1], draws)
        found.append((judge(proposed), proposed))
        alive.append(found[-1])
    return found


METHODS = {"random": random_search, "evolution": regularised_evolution}

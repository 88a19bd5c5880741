"""Strategies that propose a stream, by name or as objects."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

from naspipe.core.errors import ConfigError
from naspipe.core.space import Space
from naspipe.core.user_code import import_attribute
from naspipe.nni.strategies import adopt, is_strategy, named_strategy
from naspipe.search.strategies import STRATEGIES, make_strategy
from naspipe.streams.ports import ExplorationStrategy
from naspipe.streams.samplers import SAMPLERS

_SAMPLERS = tuple(name.partition(":")[0] for name in SAMPLERS)

StrategyMaker = Callable[[], ExplorationStrategy]
"""Makes a fresh strategy, which begins at the stream's beginning."""


def find_strategy_maker(sampler: Any, space: Space, seed: int) -> StrategyMaker | None:
    """What proposes the stream that ``sampler`` names; None for a sampler, which needs no scores.

    A text is a strategy of naspipe's (``random``, ``evolution``, ...), ``nni:NAME`` for one of
    NNI's, or ``MODULE:FUNCTION``: a function of (numbers of candidates, seed) that makes one.
    Otherwise it is a strategy itself, of NNI or with ``propose`` and ``observe``; it is copied
    before it is used, so that a run can begin anew.

    Raises:
        ConfigError: for a name that cannot be found, or what is no strategy.
    """
    counts = space.decisions.counts if space.decisions else space.candidate_counts
    if not isinstance(sampler, str):
        if is_strategy(sampler):
            return lambda: adopt(copy.deepcopy(sampler), space, seed)
        if callable(getattr(sampler, "propose", None)) and hasattr(sampler, "observe"):
            return lambda: copy.deepcopy(sampler)
        raise ConfigError(
            f"sampler: expected a name, or a strategy with propose and observe, found "
            f"{type(sampler).__name__}"
        )
    name, colon, attribute = sampler.partition(":")
    if sampler in STRATEGIES:
        return partial(make_strategy, sampler, counts, seed, lambda choices: True)
    if not colon or name in _SAMPLERS:
        return None
    if name == "nni":
        named_strategy(attribute, seed)  # refused now, if at all
        return lambda: adopt(named_strategy(attribute, seed), space, seed)
    make = import_attribute(sampler)
    if not callable(make):
        raise ConfigError(
            f"sampler {sampler}: expected a function of (numbers of candidates, seed), found "
            f"{type(make).__name__}"
        )
    return lambda: make(counts, seed)

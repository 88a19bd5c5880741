"""Find strategies that propose a stream, by name or as objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.config.user_code import import_attribute
from naspipe.machine.determinism import Randomness
from naspipe.search.strategies import STRATEGIES, make_strategy
from naspipe.streams.feedback import ExplorationStrategy, KeptStrategy
from naspipe.streams.samplers import SAMPLERS


class OwnDraws:
    """A strategy with separate global generators, so that its draws do not depend on the stages.

    A run on one stage computes in the launcher's process, and seeds the global generators before
    each block.

    Args:
        make: makes the strategy; it may also draw.
        seed: initial seed of its draws.
    """

    def __init__(self, make: Callable[[], ExplorationStrategy], seed: int) -> None:
        self._randomness = Randomness(seed)
        with self._randomness.in_use():
            self._strategy = make()

    def propose(self, sequence_id: int) -> Sequence[int] | None:
        with self._randomness.in_use():
            return self._strategy.propose(sequence_id)

    def observe(self, sequence_id: int, score: float) -> None:
        with self._randomness.in_use():
            self._strategy.observe(sequence_id, score)

    def finish(self) -> None:
        """Notify the strategy that the stream is complete."""
        if finish := getattr(self._strategy, "finish", None):
            finish()


_SAMPLERS = tuple(name.partition(":")[0] for name in SAMPLERS)

_KEPT = "_naspipe_stream"
"""Attribute of a strategy object that holds its stream and its :class:`KeptStrategy`."""

StrategyMaker = Callable[[], ExplorationStrategy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Requirements on a strategy."""

    seed: int
    """Seed of strategies that are given by name."""
    delay: int
    """Number of subnets between a subnet and the first that is proposed with its score known."""
    subnets: int
    """Total number of subnets."""
    allows: Callable[[Sequence[int]], bool] | None = None
    """Returns True if the decisions of a subnet satisfy the limits."""
    limits: str = ""
    """The limits as text."""


def find_strategy_maker(sampler: Any, space: Space, asked: Asked) -> StrategyMaker | None:
    """Return a maker of the strategy ``sampler``; None for a sampler, which needs no scores.

    A text is one of naspipe's strategies (``random``, ``evolution``, ...), ``nni:NAME`` for one of
    NNI's, or ``MODULE:FUNCTION``: a function of (numbers of candidates, seed) that makes one.
    Anything else is a strategy object, of NNI or with ``propose`` and ``observe``; if the stream is
    restarted, it does not receive any score twice.
    """
    seed, counts = asked.seed, space.drawn_counts
    if not isinstance(sampler, str):
        return _of_object(sampler, space, asked)
    name, colon, attribute = sampler.partition(":")
    if sampler in STRATEGIES:
        return partial(make_strategy, sampler, counts, seed, lambda choices: True)
    if not colon or name in _SAMPLERS:
        return None
    if name == "nni":
        from naspipe.nni.strategies import adopt, named_strategy

        def named() -> Any:
            return named_strategy(attribute, seed, asked.delay, asked.subnets)

        named()  # raises an error now if the name is wrong
        return lambda: adopt(named(), space, seed, asked.allows)
    make = import_attribute(sampler)
    if not callable(make):
        raise ConfigError(
            f"sampler {sampler}: expected a function of (numbers of candidates, seed), found "
            f"{type(make).__name__}"
        )
    return lambda: OwnDraws(partial(make, counts, seed), seed)


def check_draws(sampler: Any) -> None:
    """Reject a search's random strategy as a sampler: it would wait for scores that it ignores."""
    if sampler == "random":
        raise ConfigError(
            "sampler 'random': expected one of uniform, fair, spaced:W, ..., found the name of a "
            "search's strategy (did you mean uniform?)"
        )


def name_of(strategy: Any) -> str:
    """Return the name of a strategy in a definition."""
    return strategy if isinstance(strategy, str) else type(strategy).__qualname__


def is_nnis(strategy: Any) -> bool:
    """Return True if it is, or names, one of NNI's strategies."""
    from naspipe.nni.strategies import is_strategy

    return strategy.startswith("nni:") if isinstance(strategy, str) else is_strategy(strategy)


def check_is_object(strategy: Any) -> None:
    """Reject a strategy's class, and None."""
    if strategy is None:
        raise ConfigError(
            "strategy: expected a name, as in 'evolution', or an object with propose and observe, "
            "found None; leave it out for the usual one"
        )
    if isinstance(strategy, type):
        name = strategy.__name__
        raise ConfigError(
            f"strategy: expected an object, found the class {name}; make one, as in {name}(...)"
        )


def _of_object(strategy: Any, space: Space, asked: Asked) -> StrategyMaker:
    from naspipe.nni.strategies import adopt, check_explores, is_strategy

    check_is_object(strategy)
    name = type(strategy).__name__
    of_nni = is_strategy(strategy)
    if not of_nni and not (
        callable(getattr(strategy, "propose", None)) and hasattr(strategy, "observe")
    ):
        raise ConfigError(
            f"sampler: expected a name, as in 'uniform' or 'file:subnets.jsonl', or a strategy "
            f"with propose(number), which returns choices, and observe(number, score), found {name}"
        )
    stream = (
        f"{asked.subnets} subnets of {space.name}{list(space.drawn_counts)!s:.60} with the seed "
        f"{asked.seed}, the delay {asked.delay}, and {asked.limits or 'no limits'}"
    )
    known, kept = getattr(strategy, _KEPT, ("", None))
    if of_nni:
        check_explores(strategy, asked.delay, asked.subnets, is_begun=kept is not None)
    if kept is None:
        if of_nni:
            kept = KeptStrategy(adopt(strategy, space, asked.seed, asked.allows), name)
        else:
            kept = KeptStrategy(OwnDraws(lambda: strategy, asked.seed), name)
        if hasattr(strategy, "__dict__"):
            setattr(strategy, _KEPT, (stream, kept))
    elif known != stream:
        raise ConfigError(
            f"strategy {name}: expected an object that has explored nothing yet, found one that "
            f"explored {known}; make one for each stream"
        )
    begin: StrategyMaker = kept.begin
    return begin

"""NNI's strategies, by name or as objects, prepared to propose a stream of subnets."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.nni.decisions import LabelDecisions
from naspipe.nni.library import explored, library
from naspipe.nni.strategy_thread import NniStrategy

STRATEGIES = ("Random", "GridSearch", "RegularizedEvolution", "TPE", "PolicyBasedRL")
"""Strategies that ``nni:NAME`` creates."""

_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "Random": {"dedup": False},
    "RegularizedEvolution": {"dedup": False},
    "TPE": {"optimize_mode": "maximize"},
}
"""Options with which they can fill a stream of any length, and maximize the score."""

_INSTEAD = {"ENAS": "nni:PolicyBasedRL"}
"""The strategy to use instead of a one-shot strategy."""

_ONE_SHOT = ("RandomOneShot", "ENAS", "DARTS", "GumbelDARTS", "Proxyless")


def is_strategy(thing: Any) -> bool:
    """Return True if an object is an NNI strategy; does not import NNI."""
    return _is_a(thing, "Strategy")


def named_strategy(name: str, seed: int, delay: int, subnets: int) -> Any:
    """Create one of NNI's strategies, with the options under which it can fill any stream.

    Args:
        name: name of its class.
        seed: seed of its random draws.
        delay: number of subnets from one subnet to the first that is proposed knowing its score.
        subnets: total number of subnets. The population of evolution is smaller, so that some of
            them are mutations.
    """
    if name in _ONE_SHOT:
        raise ConfigError(_one_shot(name))
    if name not in STRATEGIES:
        raise ConfigError(f"sampler nni:{name:.80}: expected nni:NAME with {', '.join(STRATEGIES)}")
    options = dict(_OPTIONS.get(name, {}))
    if name == "RegularizedEvolution" and not delay < _POPULATION < subnets:
        size = max(2, delay + 1, min(_POPULATION, subnets // 4))
        options |= {"population_size": size, "sample_size": max(1, size // 4)}
    if name != "PolicyBasedRL":
        options["seed"] = seed
    return getattr(_strategies(), name)(**options)


_POPULATION = 100
"""NNI's default."""


def check_explores(strategy: Any, delay: int, subnets: int, *, is_begun: bool) -> None:
    """Reject a strategy object that cannot fill a stream, and warn about unlikely settings.

    Args:
        strategy: an NNI strategy.
        delay, subnets: as in :func:`named_strategy`.
        is_begun: True if it has already explored a stream of naspipe.
    """
    name = type(strategy).__name__
    if _is_a(strategy, "OneShotStrategy"):
        raise ConfigError(_one_shot(name))
    if not is_begun and getattr(strategy, "_status", "empty") != "empty":
        raise ConfigError(
            f"strategy {name}: expected one that has not run, found one whose status is "
            f"{strategy._status.value}; NNI's strategies run once, so make a new one"
        )
    if _is_a(strategy, "RegularizedEvolution"):
        population = strategy.population_size
        if population <= delay:
            raise ConfigError(
                f"strategy {name}: expected a population_size above the delay, {delay}, found "
                f"{population}: its first child would be due before any score is known; make it "
                f"larger, or the delay less"
            )
        if subnets <= population:
            _warn(
                strategy,
                f"strategy {name} has a population_size of {population}, and {subnets} subnets are "
                f"asked for: all of them are drawn at random, and none from the scores",
            )
    mode = getattr(getattr(strategy, "tuner", None), "optimize_mode", None)
    if not is_begun and getattr(mode, "value", mode) == "minimize":
        _warn(
            strategy,
            f"strategy {name} looks for the least score, as NNI has it by default, and more is "
            f"better here: {name}(optimize_mode='maximize') looks for the best subnets",
        )


def experiment_config(model_space: Any, evaluator: Any, strategy: Any) -> Any:
    """Return NNI's own configuration of an experiment, which scripts modify."""
    _strategies()
    from nni.nas.experiment import NasExperimentConfig

    log = logging.getLogger("nni.nas.experiment.config.experiment")
    log.setLevel(logging.ERROR)  # it warns about GPUs that trials would not use
    return NasExperimentConfig.default(model_space, evaluator, strategy)


def _warn(strategy: Any, said: str) -> None:
    """Warn once for each strategy, because an experiment checks it several times."""
    if said not in _TOLD.setdefault(strategy, set()):
        _TOLD[strategy].add(said)
        warnings.warn(said, stacklevel=3)


_TOLD: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""Warnings that have been issued for each strategy."""


def _one_shot(name: str) -> str:
    search = _INSTEAD.get(name, "nni:RegularizedEvolution")
    found = (
        f"strategy {name} of NNI trains a supernet of its own: expected naspipe.train with its "
        f"sampler 'uniform' to do that, and naspipe.search_subnets(..., strategy={search!r}) to "
        f"choose"
    )
    if name in ("DARTS", "GumbelDARTS", "Proxyless"):
        found += "; weights of candidates that are trained beside the layers are not supported"
    return found


def _is_a(thing: Any, name: str) -> bool:
    return any(
        base.__module__.startswith(("nni.nas.strategy", "nni.nas.oneshot"))
        and base.__name__ == name
        for base in type(thing).__mro__
    )


def adopt(
    strategy: Any,
    space: Space,
    seed: int,
    allows: Callable[[Sequence[int]], bool] | None = None,
) -> NniStrategy:
    """Let an NNI strategy explore a space; a space made from a model space keeps its labels.

    Args:
        strategy: a strategy that has not run.
        space: the space whose subnets it proposes.
        seed: seed of the global generators, for strategies that use them.
        allows: returns True if a subnet's decisions are within the limits; other subnets fail
            without being evaluated.
    """
    _strategies()
    import nni
    from nni.mutable import Categorical, MutableDict
    from nni.nas.space import SimplifiedModelSpace

    decisions = space.decisions
    if isinstance(decisions, LabelDecisions):
        mutables = {label: explored(each) for label, each in decisions.mutables.items()}
        to_numbers = decisions.numbers
    else:
        labels = [f"block_{block}" for block in range(len(space.drawn_counts))]
        mutables = {
            label: Categorical(list(range(count)), label=label)
            for label, count in zip(labels, space.drawn_counts, strict=True)
        }

        def to_numbers(sample: Mapping[str, Any]) -> tuple[int, ...]:
            return tuple(int(sample[label]) for label in labels)

    model_space = SimplifiedModelSpace(nni.trace(_Explored)(), MutableDict(mutables), None)
    return NniStrategy(strategy, model_space, to_numbers, seed, allows)


class _Explored:
    """Placeholder for the model that NNI's simplified space requires; it is never used."""


class _NoSleep:
    @staticmethod
    def sleep(seconds: float) -> None:
        """Do nothing: NNI's tuners sleep a second after each model, but here submitting blocks."""


@cache
def _strategies() -> Any:
    """Import NNI's module of strategies."""
    library()
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")  # gym, if installed, prints that it is outdated
        from nni.nas import strategy
        from nni.nas.strategy import hpo
    hpo.time = _NoSleep
    # It logs every end; failures are raised with everything that it would log.
    logging.getLogger("nni.nas.strategy.base").setLevel(logging.CRITICAL + 1)
    return strategy

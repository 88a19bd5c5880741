"""NNI's strategies by name or as objects, made ready to propose a stream."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from functools import cache
from typing import Any

from naspipe.core.errors import ConfigError
from naspipe.core.space import Space
from naspipe.nni.decisions import LabelDecisions
from naspipe.nni.driven import NniStrategy
from naspipe.nni.library import library

STRATEGIES = ("Random", "GridSearch", "RegularizedEvolution", "TPE", "PolicyBasedRL")
"""Those that ``nni:NAME`` makes."""

_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "Random": {"dedup": False},
    "RegularizedEvolution": {"dedup": False},
    "TPE": {"optimize_mode": "maximize"},
}
"""With which they fill a stream of any length, and know that more is better."""


def is_strategy(thing: Any) -> bool:
    """Whether something is a strategy of NNI's; does not import NNI to find out."""
    return any(
        base.__module__.startswith("nni.nas.strategy") and base.__name__ == "Strategy"
        for base in type(thing).__mro__
    )


def named_strategy(name: str, seed: int) -> Any:
    """One of NNI's strategies with the options under which it can fill any stream.

    Raises:
        ConfigError: for an unknown name, or without NNI.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"sampler nni:{name:.80}: expected nni:NAME with {', '.join(STRATEGIES)}")
    make = getattr(_strategies(), name)
    return make(**_OPTIONS.get(name, {}), **({} if name == "PolicyBasedRL" else {"seed": seed}))


def adopt(strategy: Any, space: Space, seed: int) -> NniStrategy:
    """Let a strategy of NNI's explore a space; one made from a model space keeps its labels.

    Raises:
        ConfigError: without NNI.
    """
    _strategies()
    import nni
    from nni.mutable import Categorical, MutableDict
    from nni.nas.space import SimplifiedModelSpace

    decisions = space.decisions
    if isinstance(decisions, LabelDecisions):
        mutables, to_numbers = dict(decisions.mutables), decisions.numbers
    else:
        counts: Sequence[int] = decisions.counts if decisions else space.candidate_counts
        labels = [f"block_{block}" for block in range(len(counts))]
        mutables = {
            label: Categorical(list(range(count)), label=label)
            for label, count in zip(labels, counts, strict=True)
        }

        def to_numbers(sample: Mapping[str, Any]) -> tuple[int, ...]:
            return tuple(int(sample[label]) for label in labels)

    model_space = SimplifiedModelSpace(nni.trace(_Explored)(), MutableDict(mutables), None)
    return NniStrategy(strategy, model_space, to_numbers, seed)


class _Explored:
    """Stands for the model that NNI's simplified space wants; nothing is ever made of it."""


class _NoSleep:
    @staticmethod
    def sleep(seconds: float) -> None:
        """Go on: NNI's tuners sleep a second after each model, here submitting blocks instead."""


@cache
def _strategies() -> Any:
    """NNI's module of strategies.

    Raises:
        ConfigError: without NNI.
    """
    library()
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")  # gym, if it is there, prints that it is old
        from nni.nas import strategy
        from nni.nas.strategy import hpo
    hpo.time = _NoSleep
    # It logs every end; failures are raised with all that it would say.
    logging.getLogger("nni.nas.strategy.base").setLevel(logging.CRITICAL + 1)
    return strategy

"""What zero-cost proxies say of a search's subnets, beside what stages find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.frontend.given.strategy_source import sample_stream
from naspipe.runtime.evaluating.naswot import Naswot
from naspipe.runtime.evaluating.synflow import Synflow
from naspipe.search.scores import PROXIES, Scores, parts_of

_KINDS: Mapping[str, type[Synflow] | type[Naswot]] = {"synflow": Synflow, "naswot": Naswot}


def proxies_in(score: str) -> tuple[str, ...]:
    """The proxies that a score is, or is a sum of."""
    return tuple(part for part in parts_of(score) if part in PROXIES)


class Estimates:
    """The proxies of one search; each subnet is estimated once.

    Args:
        score: of the search.
        space: whose subnets.
        seed: of the run.
        threads: of the compute.
        batch: the run's first.
    """

    def __init__(
        self,
        score: str,
        space: Space,
        seed: int,
        threads: int,
        batch: Mapping[str, torch.Tensor],
    ) -> None:
        self._space = space
        self._proxies = {
            name: _KINDS[name](space, seed, threads, batch) for name in proxies_in(score)
        }
        self._known: dict[tuple[int, ...], dict[str, float]] = {}

    def check(self) -> None:
        """The proxies must be able to tell something of the space.

        Raises:
            ConfigError: when they cannot.
        """
        for proxy in self._proxies.values():
            if isinstance(proxy, Synflow):
                proxy.check(sample_stream(self._space)[0])
            elif not any(map(proxy.units, sample_stream(self._space))):
                raise ConfigError(
                    f"score naswot: expected layers with ReLU, ReLU6 or leaky ReLU, whose signs it "
                    f"compares, found none in space {self._space.name}; use --score synflow or loss"
                )

    def added(self, choices: Sequence[int], scores: Scores) -> Scores:
        """The scores of a subnet with those of the proxies."""
        key = tuple(choices)
        if key not in self._known:
            self._known[key] = {name: each(key) for name, each in self._proxies.items()}
        return scores._replace(**self._known[key])

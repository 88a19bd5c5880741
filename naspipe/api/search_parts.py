"""The parts of a search: weights, costs and strategies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from naspipe.config.definition import Definition
from naspipe.config.errors import ConfigError
from naspipe.config.recipe import Recipe
from naspipe.config.space import Space
from naspipe.config.user_code import is_same_name
from naspipe.inputs.held_out import part_of
from naspipe.inputs.run import Run
from naspipe.inputs.strategies import Asked, find_strategy_maker, is_nnis
from naspipe.jobs.losses import Loss
from naspipe.jobs.workload import Batches, Workload, define
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.profiling.counts import SubnetCounter
from naspipe.search.scores import PROXIES, parts_of
from naspipe.search.search_directory import SearchDefinition
from naspipe.search.strategies import STRATEGIES, Cost, Limits, Listed, make_strategy
from naspipe.store.checkpoints import Checkpoint, read_checkpoint
from naspipe.streams.feedback import ExplorationStrategy
from naspipe.streams.stream_file import read_stream

ALL = "all"
"""The strategy that proposes every subnet once."""

_MOST = 1_000_000
"""Maximum number of subnets for this strategy."""


def find_weights(run: Run) -> Checkpoint:
    """Return the final checkpoint of a run, or its newest one if the run is not complete."""
    if run.directory.checkpoint("final").is_dir():
        return read_checkpoint(run.directory.checkpoint("final"))
    latest = run.directory.checkpoints.latest().checkpoint
    if latest is None:
        raise ConfigError(
            f"{run.directory.path}: expected a checkpoint to take weights from, found none; let "
            f"the run end, or train with --checkpoint-every N"
        )
    return latest


def forward_costs(costs: CostTable) -> CostTable:
    """Return the costs of layers that are not trained."""
    return CostTable(
        {key: LayerCost(cost.forward_ns, 0, 0, 0, 0) for key, cost in costs.costs.items()}
    )


class Pricer:
    """Computes the costs of subnets for inputs with the shapes of a batch."""

    def __init__(self, space: Space, batch: Mapping[str, torch.Tensor], costs: CostTable) -> None:
        self.counter = SubnetCounter(space, batch)
        self._space = space
        self._costs = costs

    def of(self, choices: Sequence[int]) -> Cost:
        """Return the cost of one subnet, given by one choice per choice block."""
        counts = self.counter.of(choices)
        chain = enumerate(self._space.chain(choices))
        forward_ns = sum(self._costs.of(block, candidate).forward_ns for block, candidate in chain)
        return Cost(counts.flops, float(counts.params), forward_ns / 1e6)


def title_of(run: Path, definition: SearchDefinition, held_out: Batches) -> str:
    """Return the title of the progress: the strategy, and what subnets are judged on."""
    proxies = set(parts_of(definition.score)) <= set(PROXIES)
    part = "first weights" if proxies else part_of(held_out, definition.validation)
    return f"search of {run} by {definition.strategy} on {part}"


def find_strategy(
    definition: SearchDefinition, space: Space, pricer: Pricer, given: Any = None
) -> Callable[[], ExplorationStrategy]:
    """Return a maker of strategies within the limits; ``given`` is the strategy if it is an object.

    Raises:
        ConfigError: for an unknown name or option, for limits that no subnet meets, or if the
            strategy does not support limits.
    """
    name, limits = definition.strategy, definition.limits
    decisions, counts = space.decisions, space.drawn_counts

    def is_allowed(drawn: Sequence[int]) -> bool:
        return limits.allow(pricer.of(decisions.choices(drawn) if decisions else drawn))

    make: Callable[[], ExplorationStrategy] = partial(
        make_strategy, name, counts, definition.seed, is_allowed, definition.options
    )
    if name.startswith("file:"):
        return _listed(definition, space, is_allowed)
    if name == ALL:
        return _every(definition, counts, is_allowed)
    if given is not None or ":" in name:
        make = _found(definition, space, is_allowed, name if given is None else given)
    else:
        make().propose(0)
    if limits.flops:
        pricer.counter.check()
    return make


def _found(
    definition: SearchDefinition,
    space: Space,
    is_allowed: Callable[[Sequence[int]], bool],
    strategy: Any,
) -> Callable[[], ExplorationStrategy]:
    """Return a maker of an NNI strategy, which may have limits, or of the user's own strategy."""
    name, limits = definition.strategy, definition.limits
    is_limited = limits != Limits()
    asked = Asked(
        seed=definition.seed,
        delay=definition.delay,
        subnets=definition.budget,
        allows=is_allowed if is_limited else None,
        limits=str(limits) if is_limited else "",
    )
    found = find_strategy_maker(strategy, space, asked)
    if found is None or (is_limited and not is_nnis(strategy)) or definition.options:
        raise ConfigError(
            f"strategy {name!r:.80}: expected {', '.join(STRATEGIES)} with limits or options, one "
            f"of NNI's with limits, or your own without either"
        )
    return found


def _listed(
    definition: SearchDefinition, space: Space, is_allowed: Callable[[Sequence[int]], bool]
) -> Callable[[], ExplorationStrategy]:
    """Return a maker of a strategy that proposes the first subnets of a file, in their order."""
    path = Path(definition.strategy.removeprefix("file:"))
    decisions = space.decisions
    choices_of = decisions.choices_of if decisions else None
    listed = read_stream(path, space.candidate_counts, choices_of)[: definition.budget]
    if len(listed) < definition.budget:
        raise ConfigError(
            f"--budget {definition.budget}: expected at most {len(listed)}, as many as {path} holds"
        )
    if decisions is not None:
        listed = [decisions.drawn(choices) for choices in listed]
    for number, drawn in enumerate(listed):
        if not is_allowed(drawn):
            raise ConfigError(
                f"{path}: expected subnets within the limits, found subnet {number}, which is not; "
                f"take it out, or raise the limits"
            )
    return lambda: Listed(listed)


def _every(
    definition: SearchDefinition,
    counts: Sequence[int],
    is_allowed: Callable[[Sequence[int]], bool],
) -> Callable[[], ExplorationStrategy]:
    """Return a maker of a strategy that proposes all subnets within the limits, in order."""
    if definition.options:
        raise ConfigError(f"strategy {ALL}: expected no options, found {definition.options}")
    count = math.prod(counts)
    if count <= _MOST:
        listed = [*filter(is_allowed, itertools.product(*map(range, counts)))]
        count = len(listed)
    if count != definition.budget or count > _MOST:
        raise ConfigError(
            f"strategy {ALL}: expected the budget {min(count, _MOST)}, found {definition.budget}: "
            f"there are {count} subnets to judge"
        )
    return lambda: Listed(listed)


def run_workload(run: Run, data: Batches, loss: Loss) -> Workload:
    """Return a run's workload, as far as the costs and weights of its layers depend on it.

    Raises:
        ConfigError: if the data are not those of the run.
    """
    recorded = run.manifest["definition"]
    fields = {**recorded, "recipe": Recipe(**recorded["recipe"])}
    workload = Workload(space=run.space, data=data, loss=loss, definition=Definition(**fields))
    found = define(run.space, data, loss, recipe=Recipe(), steps=1).data
    expected = recorded["data"]
    for key in sorted(found.keys() | expected.keys()):
        if not is_same_name(found.get(key), expected.get(key)):
            raise ConfigError(
                f"run {run.path} was trained on {expected.get('name')} data of "
                f"{key} {expected.get(key)!r:.80}, found {found.get(key)!r:.80}: expected the "
                f"run's own data; give them with --data, or leave it out"
            )
    return workload

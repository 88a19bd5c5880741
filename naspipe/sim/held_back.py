"""What holds a pipeline back so far that more than one stage will hardly help, and what lifts it.

The causal bound says how many stages a stream can keep busy. Here it is asked again with one thing
changed after the other; what has to be changed is the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from naspipe.config.ids import Subnet
from naspipe.config.rules import BlockRule, Exact, Lag, rule_of
from naspipe.config.steps import Steps
from naspipe.planning.causal_bound import causal_bound, side_by_side
from naspipe.planning.cost import CostTable, LayerCost
from naspipe.sim.chains import Stream
from naspipe.sim.grown_lags import with_grown_lags
from naspipe.sim.pipeline import Pipeline

NEAR_ONE = 1.5
"""Fewer stages that can be busy are hardly more than one; half of them all, but 2 at most, are not
many either."""

NEARER = 1.25
"""The same where nothing in particular is the reason."""

LIFTS = 1.2
"""By how much a change must raise that."""

MOST_SUBNETS = 400
"""Looked at, from the first."""

LEAST_STEPS = 10
"""Of a run that is worth a word."""

_ALIKE = LayerCost(1, 2, 0)
"""Of every layer, where costs are not known."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Why a pipeline is hardly faster than one stage."""

    busy_stages: float
    """That can be, however many there are."""
    lifted: float
    """The same with all that holds it back changed."""
    layers: tuple[int, ...] = ()
    """Blocks of the chain whose exact layer every subnet reads behind the one before."""
    is_gated: bool = False
    """Every WRITE waits for all gradients of its step."""
    is_chosen: bool = True
    """Whether there is anything to choose: otherwise every step reads all of the one before."""


def held_back(pipeline: Pipeline, workers: int) -> HeldBack | None:
    """What holds streams of one space back; None where nothing does, or they are too short.

    Args:
        pipeline: whose first stream stands for all.
        workers: stages of all groups together.
    """
    pipeline, steps = with_grown_lags(pipeline), pipeline.steps
    first = pipeline.streams[0]
    if len(first.subnets) < LEAST_STEPS * steps.passes:
        return None
    rules = first.chain.rules
    busy, wanted = _busy(pipeline, rules, steps), max(NEAR_ONE, min(2.0, workers / 2))
    if busy >= wanted:
        return None
    fixed = [block for block in range(len(rules)) if _is_fixed(first.subnets, block)]
    if len(fixed) == len(rules):
        return HeldBack(busy, busy, is_chosen=False)

    def lifted(layers: Sequence[int], gate: bool) -> float:
        changed = tuple(
            Lag(2 * workers) if block in layers else rule for block, rule in enumerate(rules)
        )
        return _busy(pipeline, changed, replace(steps, is_gated=steps.is_gated and not gate))

    any_subnet = next(subnet for subnet in first.subnets if subnet.chain)
    exact = [b for b in fixed if isinstance(rule_of(rules, any_subnet.layer(b)), Exact)]
    enough = max(busy * LIFTS, min(wanted, lifted(exact, True)))
    found = _least(exact, steps.is_gated, lambda *change: lifted(*change) >= enough)
    if found is not None:
        return HeldBack(busy, lifted(*found), *found)
    return HeldBack(busy, busy) if busy < NEARER else None


def _least(
    layers: Sequence[int], gate: bool, helps: Callable[[Sequence[int], bool], bool]
) -> tuple[tuple[int, ...], bool] | None:
    """Changes that help together and of which none can be left out; layers behind go first."""
    if not helps(layers, gate):
        return None
    kept = tuple(layers)
    for layer in reversed(layers):
        less = tuple(each for each in kept if each != layer)
        if helps(less, gate):
            kept = less
    return kept, gate and not helps(kept, False)


def _is_fixed(subnets: Sequence[Subnet], block: int) -> bool:
    """Whether all subnets use the same layer there."""
    return len({subnet.layer(block) for subnet in subnets if subnet.chain}) <= 1


def _busy(pipeline: Pipeline, rules: Sequence[BlockRule], steps: Steps) -> float:
    """Stages that can be busy once the streams flow."""
    bounds = []
    for stream in pipeline.streams:
        subnets = stream.subnets[: steps.end(MOST_SUBNETS)]
        bounds.append(causal_bound(subnets, rules, stream.costs or _alike(stream), steps))
    return side_by_side(bounds).steady_parallelism


def _alike(stream: Stream) -> CostTable:
    return CostTable({(block, 0): _ALIKE for block in range(len(stream.chain.rules))})

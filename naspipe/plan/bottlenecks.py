"""Why more stages stop helping: explains with figures what limits a stream on a chain.

``bottlenecks`` explains a simulated run; ``held_back`` warns before a run that has hardly any
parallelism, and names the smallest change that would help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from naspipe.config.rules import BlockRule, Every, Exact, Lag, rule_of
from naspipe.config.steps import Steps
from naspipe.plan.bounds import CausalBound, causal_bound, side_by_side
from naspipe.plan.chains import Chain, Stream
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.partitions import peak_to_mean
from naspipe.plan.pipeline import Pipeline, Plan, with_grown_lags
from naspipe.plan.simulation import Outcome

_MOST = 0.9
"""Minimum share of a subnet's work that must be entangled for the subnet to count as entangled."""

_NOTABLE = 0.01
"""Smaller losses are not reported."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """One reason, and the maximum number of busy stages that it allows."""

    busy_stages: float
    text: str


def bottlenecks(
    pipeline: Pipeline,
    labels: Sequence[str],
    bound: CausalBound,
    plan: Plan,
    outcome: Outcome,
    groups: int = 1,
) -> list[Bottleneck]:
    """Return what keeps the stages of a simulated run from being busy, strictest first."""
    stream, count = pipeline.streams[0], len(pipeline.streams)
    costs, subnets = stream.costs, stream.subnets
    if costs is None:
        return []
    means = [  # of one pass through each block, without the initialization of layers
        sum(costs.of(block, subnet.chain[block]).total_ns for subnet in subnets) / len(subnets)
        for block in range(len(stream.chain.rules))
    ]
    work_ns, passes, probes = sum(means), pipeline.steps.passes, pipeline.steps.probes
    busy = bound.steady_parallelism
    if probes:
        text = (
            f"probes: what a step trains waits for the losses of its {probes} probes, and they for "
            f"the step before: at most {busy:.1f} stages are busy; more probes and passes of a "
            f"step, lag(K), or several streams would help"
        )
    else:
        text = (
            f"causal order: the longest chain of subnets that use the same layers keeps at most "
            f"{busy:.1f} stages busy; a sampler that spaces its choices, or several streams, would "
            f"help"
        )
    found = [Bottleneck(busy, text)]
    largest_ns, label = max(zip(means, labels, strict=True))
    busy = groups * work_ns / largest_ns if largest_ns else float("inf")
    text = (
        f"largest block: {label} takes {largest_ns / work_ns:.1%} of a subnet and cannot be cut, "
        f"so at most {busy:.1f} stages are busy"
    )
    found.append(Bottleneck(busy, text))
    if not probes:  # otherwise the longest chain already covers these
        found += _shared(stream.chain, labels, means, work_ns, count * passes)
        found += _entangled(stream, labels, means, passes * count, outcome.stages // groups, groups)
    if outcome.stages > groups:
        ratios = peak_to_mean(subnets, plan.streams[0].partitions[: len(subnets)], costs)
        mean = sum(ratios) / len(ratios) / groups  # the stages of the other groups are empty
        text = (
            f"imbalance: a subnet's dearest stage takes {mean:.2f} times the mean one, because a "
            f"stage is a whole number of blocks"
        )
        found.append(Bottleneck(outcome.stages / mean, text))
    most = outcome.window * count
    if most < outcome.stages:
        text = (
            f"window: at most {most} subnets are under way, each on one stage at a "
            f"time; raise window or activation_memory"
        )
        found.append(Bottleneck(most, text))
    if passes % groups:  # a step takes as long as the group with the most passes of it
        most = -(-passes // groups)
        text = (
            f"groups: {passes} passes of a step on {groups} groups leave some with {most} and some "
            f"with {passes // groups}; a multiple of {groups} would help"
        )
        found.append(Bottleneck(outcome.stages * passes / (most * groups), text))
    if outcome.stall_ratio > _NOTABLE:
        text = (
            f"memory: stages wait {outcome.stall_ratio:.1%} of the time for layers to be "
            f"loaded; a larger budget would help"
        )
        found.append(Bottleneck(outcome.stages * (1 - outcome.stall_ratio), text))
    biting = [limit for limit in found if limit.busy_stages < outcome.stages * (1 - _NOTABLE)]
    return sorted(biting, key=lambda limit: (limit.busy_stages, limit.text))


def _shared(
    chain: Chain, labels: Sequence[str], means: Sequence[float], work_ns: float, together: int
) -> list[Bottleneck]:
    """From an exact shared layer to the end of the chain and back, steps are sequential.

    ``together`` is the number of passes that read the same version, over all streams.
    """
    found = []
    for block, (rule, is_shared) in enumerate(zip(chain.rules, chain.is_shared, strict=True)):
        serial_ns = sum(means[block:])
        if not is_shared or not serial_ns:
            continue
        if isinstance(rule, Exact):
            busy = together * work_ns / serial_ns
            found.append(
                Bottleneck(
                    busy,
                    f"exact layer {labels[block]}: every step reads what the one before wrote, "
                    f"so {serial_ns / work_ns:.1%} of each step is sequential: at most "
                    f"{busy:.1f} stages; lag(K) or frozen would lift that",
                )
            )
        elif isinstance(rule, Lag | Every):
            most = rule.most_under_way
            busy = together * most * work_ns / serial_ns
            found.append(
                Bottleneck(
                    busy,
                    f"{rule} of {labels[block]}: at most {most} steps are under "
                    f"way, which keeps at most {busy:.1f} stages busy",
                )
            )
    return found


def _entangled(
    stream: Stream,
    labels: Sequence[str],
    means: Sequence[float],
    together: int,
    stages: int,
    groups: int,
) -> list[Bottleneck]:
    """Every subnet uses the same exact layers with its own settings.

    No access of a step starts there before the last step's WRITEs, so only passes fill the stages:
    S · P / (P + S - 1) of S stages with P passes. Streams count as passes do.
    """
    rules = stream.chain.rules
    used = [subnet for subnet in stream.subnets if subnet.candidates]
    exact = [
        block
        for block in range(len(rules) if used else 0)
        if len({subnet.layer(block) for subnet in used}) == 1
        and len({subnet.chain[block] for subnet in used}) > 1
        and isinstance(rules[block], Exact)
    ]
    share = sum(means[exact[0] :]) / sum(means) if exact else 0.0
    if share < _MOST:
        return []
    passes = max(1, together // groups)
    busy = groups * stages * passes / (passes + stages - 1)
    return [
        Bottleneck(
            busy,
            f"entangled: every subnet uses {labels[exact[0]]} and what follows (exact), so no step "
            f"starts before the last one's WRITEs: S·P/(P + S - 1) = {busy:.1f} stages with P = "
            f"{passes}{f' in each of {groups} groups' if groups > 1 else ''}; more passes "
            f"(subnets:P), groups, streams or lag({stages - 1}) would help",
        )
    ]


NEAR_ONE = 1.5
"""Below this number of busy stages, a pipeline counts as held back; so it does below half of all
stages, but 2 at most."""

NEARER = 1.25
"""The same limit if there is no particular reason."""

LIFTS = 1.2
"""Minimum factor by which a change must raise the number of busy stages to be suggested."""

MOST_SUBNETS = 400
"""Number of subnets at the beginning of a stream that are considered."""

LEAST_STEPS = 10

_ALIKE = LayerCost(1, 2, 0)
"""The cost of every layer if costs are not known."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The reason why a pipeline is hardly faster than one stage."""

    busy_stages: float
    lifted: float
    """Number of stages that could be busy if everything that holds the pipeline back were
    changed."""
    layers: tuple[int, ...] = ()
    """Blocks whose exact layer every subnet reads after the previous one has written it."""
    is_gated: bool = False
    """True if every WRITE waits for all gradients of its step."""
    is_chosen: bool = True
    """False if all subnets use the same layers, so that every step reads everything that the
    previous one wrote."""


def held_back(pipeline: Pipeline, workers: int) -> HeldBack | None:
    """Return what holds streams of one space back; None if nothing does, or if they are too short.

    Args:
        pipeline: its first stream represents all of them.
        workers: number of stages of all groups together.
    """
    pipeline, steps = with_grown_lags(pipeline), pipeline.steps
    first = pipeline.streams[0]
    if len(first.subnets) < LEAST_STEPS * steps.passes:
        return None
    rules = first.chain.rules
    busy, wanted = _busy(pipeline, rules, steps), max(NEAR_ONE, min(2.0, workers / 2))
    if busy >= wanted:
        return None
    used = [subnet for subnet in first.subnets if subnet.chain]
    fixed = [b for b in range(len(rules)) if len({subnet.layer(b) for subnet in used}) <= 1]
    if len(fixed) == len(rules):
        return HeldBack(busy, busy, is_chosen=False)

    def lifted(layers: Sequence[int], gate: bool) -> float:
        changed = tuple(
            Lag(2 * workers) if block in layers else rule for block, rule in enumerate(rules)
        )
        return _busy(pipeline, changed, replace(steps, is_gated=steps.is_gated and not gate))

    exact = [b for b in fixed if isinstance(rule_of(rules, used[0].layer(b)), Exact)]
    enough = max(busy * LIFTS, min(wanted, lifted(exact, True)))
    found = _least(exact, steps.is_gated, lambda *change: lifted(*change) >= enough)
    if found is not None:
        return HeldBack(busy, lifted(*found), *found)
    return HeldBack(busy, busy) if busy < NEARER else None


def _least(
    layers: Sequence[int], gate: bool, helps: Callable[[Sequence[int], bool], bool]
) -> tuple[tuple[int, ...], bool] | None:
    """Return a minimal set of changes that help together; later layers are dropped first."""
    if not helps(layers, gate):
        return None
    kept = tuple(layers)
    for layer in reversed(layers):
        less = tuple(each for each in kept if each != layer)
        if helps(less, gate):
            kept = less
    return kept, gate and not helps(kept, False)


def _busy(pipeline: Pipeline, rules: Sequence[BlockRule], steps: Steps) -> float:
    """Return the number of stages that can be busy in the steady state."""
    bounds = []
    for stream in pipeline.streams:
        subnets = stream.subnets[: steps.end(MOST_SUBNETS)]
        alike = {(block, 0): _ALIKE for block in range(len(stream.chain.rules))}
        bounds.append(causal_bound(subnets, rules, stream.costs or CostTable(alike), steps))
    return side_by_side(bounds).steady_parallelism

"""``stages="auto"``: choose the groups and stages on which the first subnets are simulated fastest.

    naspipe train nlp.c1 --steps 100 --stages auto

The choice does not change any bit of the result.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from naspipe.api.planning import cores_for, make_pipeline, make_plan, measured_costs
from naspipe.api.simulate import Scenario
from naspipe.checks.inputs import check_grouping
from naspipe.checks.machine import check_device
from naspipe.config.blocks import Block
from naspipe.config.errors import ConfigError, StageFailedError
from naspipe.config.execution import Execution
from naspipe.config.ids import StreamId, Subnet
from naspipe.config.rules import Lag, Rule, steps_behind
from naspipe.config.space import Space
from naspipe.config.wiring import Wiring
from naspipe.engine.policies import causal_policies, traits_of
from naspipe.inputs.subnet_sources import draw_stream, is_drawn_beside
from naspipe.jobs.workload import Workload, common
from naspipe.machine.gpus import find_gpus
from naspipe.plan.costs import AUTO, CostTable, Shape, shapes
from naspipe.plan.pipeline import as_planned, with_grown_lags
from naspipe.plan.simulation import PREVIEW_SUBNETS, measured_timing, simulate_run

SECONDS = 2.0
"""Time after which no further shape is simulated."""

WORTH = 1.03
"""Required speed-up for choosing more workers; simulations are no more accurate than this."""

_MOST_CORES = 256


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen execution, with the simulated alternatives."""

    execution: Execution
    speeds: dict[Shape, float]
    """Passes per second of each simulated shape, in order of simulation."""
    seconds: float
    """Duration of the simulations."""
    left_out: int
    """Number of shapes that were not simulated for lack of time."""

    @property
    def note(self) -> str:
        chosen = Shape(self.execution.pipeline.groups, self.execution.pipeline.stages)
        if len(self.speeds) < 2:
            return f"stages={AUTO}: {_named(chosen)}, the only way that can be had here"
        first = next(iter(self.speeds))
        alone = self.speeds[first]
        others = ", ".join(f"{shape} {found / alone:.2f}" for shape, found in self.speeds.items())
        late = f"; no time for {self.left_out} more" if self.left_out else ""
        return (
            f"stages={AUTO}: {_named(chosen)}, simulated {self.speeds[chosen] / alone:.2f} times "
            f"as fast as {_named(first)} ({others}; {self.seconds:.1f} s{late})"
        )


def choose_stages(
    workloads: Sequence[Workload],
    execution: Execution,
    wiring: Wiring,
    say: Callable[[str], None],
    seconds: float = SECONDS,
) -> Choice:
    """Simulate the beginning of all streams on 1, 2, 4, ... of this machine's devices, and on all.

    A device is a GPU, or as many cores as a stage has threads. The smallest number is chosen unless
    more devices are :data:`WORTH` times as fast. The costs of the layers are measured once
    beforehand. If that fails, one stage is chosen, and the run itself then reports the error.
    ``say`` is called with the choice and with notes on long measurements; ``seconds`` limits the
    simulations.

    Raises:
        ConfigError: for a policy whose results depend on the stages, or steps that cannot be
            simulated.
    """
    device, policy = execution.hardware.device, common(workloads).policy
    check_device(device, 0 if device == "cpu" else len(find_gpus()))
    if not traits_of(policy).is_causal:
        raise ConfigError(
            f"stages={AUTO}: expected the policy {causal_policies()}, found {policy}, whose losses "
            f"depend on the stages; say how many, as in --stages 2"
        )
    subnets = [_first(StreamId(number), each) for number, each in enumerate(workloads)]
    possible = _possible(workloads, execution)
    choice = Choice(_in(execution, possible[0]), {}, 0.0, 0)
    if len(possible) > 1:
        try:
            costs = measured_costs(workloads, execution, say=say)
            slower = _slower(workloads, execution, possible, costs, say)
        except StageFailedError:
            return choice

        def speed(shape: Shape) -> float:
            alone = _speed(workloads, _in(execution, shape), subnets, costs, wiring)
            return alone / slower if shape.workers > 1 else alone

        start = time.monotonic()
        speeds, left_out = _simulated(possible, speed, start + seconds)
        took = time.monotonic() - start
        choice = Choice(_in(execution, _best(speeds)), speeds, took, left_out)
    say(choice.note)
    return choice


def _simulated(
    possible: Sequence[Shape], speed: Callable[[Shape], float], end: float
) -> tuple[dict[Shape, float], int]:
    """Return the speeds of two or more shapes, as time allows, and the number left out."""
    speeds: dict[Shape, float] = {}
    for done, shape in enumerate(possible, start=1):
        try:
            speeds[shape] = speed(shape)
        except ConfigError:  # such as a budget that is too small for a few stages
            if done == len(possible) and not speeds:
                raise
        if len(speeds) > 1 and time.monotonic() > end:
            return speeds, len(possible) - done
    return speeds, 0


def _best(speeds: dict[Shape, float]) -> Shape:
    """Return the fastest shape, or the first that is about as fast: fewer workers come first."""
    fastest = max(speeds.values())
    return next(shape for shape, speed in speeds.items() if speed * WORTH >= fastest)


def _first(number: StreamId, workload: Workload) -> list[Subnet]:
    """Return the first subnets of a stream, or a sample of them, in whole steps."""
    passes = workload.recipe.steps.passes
    shown = min(max(1, PREVIEW_SUBNETS // passes) * passes, workload.definition.num_passes)
    return list(draw_stream(number, workload, is_drawn_beside=True))[:shown]


def _possible(workloads: Sequence[Workload], execution: Execution) -> list[Shape]:
    steps = common(workloads).steps
    passes = 1 if steps.distills or steps.probes else steps.passes
    num_blocks = min(len(workload.space) for workload in workloads)
    asked = execution.pipeline.groups

    def may_share(groups: int) -> bool:
        try:
            for each in workloads:
                check_grouping(each, groups)
        except ConfigError:
            return False
        return True

    found = shapes(_devices(workloads, execution), num_blocks, passes)
    found = [each for each in found if asked in (1, each.groups) and may_share(each.groups)]
    return found or [Shape(asked, 1)]


def _devices(workloads: Sequence[Workload], execution: Execution) -> int:
    device = execution.hardware.device
    if device == "cpu":
        return min(cores_for(workload, execution, _MOST_CORES) for workload in workloads)
    return len(find_gpus()) if device == "cuda" else 1


def _slower(
    workloads: Sequence[Workload],
    execution: Execution,
    possible: Sequence[Shape],
    costs: Sequence[CostTable],
    say: Callable[[str], None],
) -> float:
    """Return the slowdown of layers when all cores compute concurrently and share memory.

    It is one factor for all layers, so that the noise of single measurements matters less.
    """

    def total(costs: CostTable) -> float:
        return sum(cost.total_ns for cost in costs.costs.values())

    copies = cores_for(workloads[0], execution, max(shape.workers for shape in possible))
    if copies == 1:
        return 1.0
    pairs = zip(costs, measured_costs(workloads, execution, copies, say), strict=True)
    return max(1.0, *(total(together) / total(alone) for alone, together in pairs))


def _in(execution: Execution, shape: Shape) -> Execution:
    return execution.changed(groups=shape.groups, stages=shape.stages)


def _speed(
    workloads: Sequence[Workload],
    execution: Execution,
    subnets: Sequence[Sequence[Subnet]],
    costs: Sequence[CostTable],
    wiring: Wiring,
) -> float:
    """Return the passes of all streams per second, with the lags from later in the run."""
    pipeline = with_grown_lags(make_pipeline(workloads, execution, subnets, costs, wiring))
    plan = make_plan(workloads, _in_one_order(workloads, execution), subnets, costs, wiring)
    timing = measured_timing(as_planned(pipeline, plan), execution, plan.memory)
    found = simulate_run(pipeline, plan, execution, timing)
    return sum(map(len, subnets)) * 1e9 / found.makespan_ns


def _in_one_order(workloads: Sequence[Workload], execution: Execution) -> Execution:
    """Fix the order, partition and backward, because choosing them takes much longer."""
    if execution.pipeline.backward == "auto":
        execution = execution.changed(backward="whole")
    if execution.pipeline.partition == "auto":
        execution = execution.changed(partition="balanced")
    if execution.pipeline.order != "auto":
        return execution
    is_known = not any(each.is_proposed or is_drawn_beside(each) for each in workloads)
    return execution.changed(order="latest-start" if is_known else "paper")


def _named(shape: Shape) -> str:
    stages = f"{shape.stages} stage{'s' if shape.stages > 1 else ''}"
    return f"{shape.groups} groups of {stages}" if shape.groups > 1 else stages


ENOUGH = 0.99
"""The fraction of the highest rate at which a lag is considered long enough."""


def late_layers(space: Space) -> tuple[str, ...]:
    """Return the names of the shared layers whose rule allows stale reads."""
    return tuple(
        block.name
        for block in space.blocks
        if not isinstance(block, Block) and steps_behind(block.rule) is not None
    )


def with_late(scenario: Scenario, rule: Rule) -> Scenario:
    """Return the scenario with this rule for these layers; only time and memory change."""
    space = scenario.space.with_rules(dict.fromkeys(late_layers(scenario.space), rule))
    sizes = scenario.sizes and replace(scenario.sizes, rules=space.rules)
    return replace(scenario, space=space, sizes=sizes)


def lag_needed(scenario: Scenario, stages: int, rate: Callable[[Scenario], float]) -> int | None:
    """Return the least K for which ``lag(K)`` is about as fast as any; None without lags.

    ``rate`` simulates the passes per second of a scenario. Twice as many steps as ``stages`` always
    suffice.
    """
    if not late_layers(scenario.space):
        return None
    most = 2 * stages
    enough = ENOUGH * rate(with_late(scenario, Lag(most)))
    return bisect_left(range(most), True, key=lambda k: rate(with_late(scenario, Lag(k))) >= enough)

"""Where the blocks of a blockwise distillation could be: every placement, simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.config.ids import StageId, StreamId
from naspipe.config.partition import Partition
from naspipe.frontend.given.drawn_source import draw_stream
from naspipe.frontend.given.run_plan import make_pipeline, make_plan, measured_costs
from naspipe.frontend.teaching.taught import Taught
from naspipe.planning.cost import CostTable
from naspipe.planning.joint_placements import Pieces, moved_bytes
from naspipe.planning.size import SizeTable
from naspipe.runtime.jobs.workload import Workload, wiring_of
from naspipe.runtime.sketching.layer_sizes import measure_sizes
from naspipe.sim.pipeline import as_planned
from naspipe.sim.simulation import measured_timing, simulate_run

PLACEMENTS = ("free", "pairs", "packed", "layers")
DEALING = ("hybrid", "shared")
"""Those that deal the passes of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockwisePlan:
    """One placement on some stages."""

    passes: str
    """Of a step, as the recipe says it."""
    stages: int
    placement: str
    blocks: tuple[str, ...]
    """Of each stage: ``T0`` is the teacher's first block, ``S0`` its student; with ``/n`` where n
    stages share it, with ``*`` where only some of its layers are there."""
    order: str
    steps_per_second: float
    bubble_ratio: float
    moved_bytes: int
    """From stage to stage in a step."""
    memory_bytes: int
    """The most that one stage's layers occupy, and outputs of the teacher that wait there."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def blockwise_plans(
    define: Callable[[str], Taught],
    kinds: Sequence[str],
    devices: Sequence[int],
    execution: Execution,
) -> list[BlockwisePlan]:
    """Every kind of steps on every number of devices, in every placement, the fastest first.

    Args:
        define: the streams by what their steps are made of.
        kinds: of steps.
        devices: numbers of stages.
        execution: all else.
    """
    found: list[BlockwisePlan] = []
    for kind in kinds:
        taught = define(kind)
        costs = measured_costs(taught.workloads, execution)
        sizes = [measure_sizes(each) for each in taught.workloads]
        for stages in devices:
            for placement in _possible_blockwise(taught, stages):
                how = execution.changed(stages=stages, partition=placement)
                try:
                    found.append(_simulated_blockwise(taught, costs, sizes, how))
                except ConfigError:
                    continue  # more stages than it has pieces for
    return sorted(found, key=lambda each: (-each.steps_per_second, each.stages, each.moved_bytes))


def _possible_blockwise(taught: Taught, stages: int) -> Iterator[str]:
    """The placements that make a difference on so many stages."""
    if stages == 1:
        yield "free"
        return
    yield from PLACEMENTS
    if taught.workloads[0].recipe.steps.passes > 1:
        yield from DEALING


def _simulated_blockwise(
    taught: Taught, costs: Sequence[CostTable], sizes: Sequence[SizeTable], execution: Execution
) -> BlockwisePlan:
    workloads = taught.workloads
    subnets = [draw_stream(StreamId(n), each) for n, each in enumerate(workloads)]
    wiring = wiring_of(workloads, taught.taps)
    pipeline = make_pipeline(workloads, execution, subnets, costs, wiring)
    plan = make_plan(workloads, execution, subnets, costs, wiring)
    timing = measured_timing(as_planned(pipeline, plan), execution, plan.memory)
    summary = simulate_run(pipeline, plan, execution, timing).summary
    passes = pipeline.steps.passes
    placed = [[each.partition for each in own.planned[:passes]] for own in plan.streams]
    output_bytes = tuple(each.output_bytes for each in workloads)
    pieces = Pieces(((),) * len(workloads), wiring, output_bytes, passes)
    stages = [StageId(number) for number in range(execution.pipeline.stages)]
    steps = len(subnets[0]) / passes
    return BlockwisePlan(
        passes=workloads[0].recipe.passes,
        stages=len(stages),
        placement=execution.pipeline.partition,
        blocks=tuple(" ".join(_named(workloads, placed, stage)) for stage in stages),
        order=plan.order,
        steps_per_second=steps / summary.seconds if summary.seconds else 0.0,
        bubble_ratio=summary.bubble_ratio,
        moved_bytes=moved_bytes(placed, pieces),
        memory_bytes=max(_memory(workloads, sizes, placed, stage) for stage in stages),
    )


def _named(
    workloads: Sequence[Workload], placed: Sequence[Sequence[Partition]], stage: StageId
) -> Iterator[str]:
    count = len(workloads) // 2
    for number, own in enumerate(placed):
        here = [each for each in own if each.blocks(stage)]
        if here:
            name = f"S{number}" if number < count else f"T{number - count}"
            is_part = len(here[0].blocks(stage)) < here[0].num_blocks
            shared = len({each.bounds for each in own})
            yield name + ("*" if is_part else "") + (f"/{shared}" if shared > 1 else "")


def _memory(
    workloads: Sequence[Workload],
    sizes: Sequence[SizeTable],
    placed: Sequence[Sequence[Partition]],
    stage: StageId,
) -> int:
    """All candidates of the layers on a stage, and what waits of the teacher's outputs there."""
    total = 0
    for workload, table, own in zip(workloads, sizes, placed, strict=True):
        blocks = {block for each in own for block in each.blocks(stage)}
        for block in blocks:
            layers = range(len(workload.space.blocks[block].candidates))
            total += sum(table.of(block, layer).state_bytes for layer in layers)
        if blocks and not workload.is_trained:
            total += (workload.window or 1) * workload.output_bytes
    return total

"""How runs are carried out: partitions, memory, dispatch order and window, from a profile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from naspipe.config.definition import Execution, first_gpu
from naspipe.config.ids import Subnet
from naspipe.config.wiring import Wiring
from naspipe.planning.cost import CostTable
from naspipe.planning.memory import DeviceSizes, MemoryPlan, StreamSizes
from naspipe.runtime.devices.gpus import find_gpus
from naspipe.runtime.jobs.workload import Workload, common, wiring_of
from naspipe.runtime.measuring.profile_apart import profile_apart
from naspipe.runtime.measuring.profile_cache import cached_profile
from naspipe.runtime.measuring.stateless_layers import stateless_layers
from naspipe.runtime.sketching.layer_sizes import buffered_layers, measure_sizes
from naspipe.sim.chains import Chain, Stream
from naspipe.sim.costs import StreamCosts
from naspipe.sim.pipeline import Pipeline, Plan
from naspipe.sim.simulation import chosen_plan, measured_timing


def planning_costs(
    workloads: Sequence[Workload], execution: Execution, say: Callable[[str], None] | None = None
) -> tuple[CostTable | None, ...]:
    """What the plan of each stream is made from; None where no plan needs to know.

    A profile that takes more than a second is told of through ``say``.

    Raises:
        StageFailedError: when a layer, the loss or the data raises in the profile.
    """
    if execution.pipeline.stages > 1 or execution.memory.activations:
        return measured_costs(workloads, execution, say=say)
    return (None,) * len(workloads)


def make_pipeline(
    workloads: Sequence[Workload],
    execution: Execution,
    subnets: Sequence[Sequence[Subnet]],
    costs: Sequence[CostTable | None],
    wiring: Wiring | None = None,
    samples: Sequence[bool] = (),
) -> Pipeline:
    """What is to be run, as far as schedules depend on it; arguments as of :func:`make_plan`."""
    shared = common(workloads)
    is_told = shared.steps.passes > 1  # then it matters which forwards must follow one another
    return Pipeline(
        streams=tuple(
            Stream(
                Chain.of(
                    workload.space,
                    _buffered(workload) if is_told else None,
                    stateless_layers(workload.space),
                ),
                tuple(drawn),
                table,
                output_bytes=workload.output_bytes,
                is_sample=is_sample or workload.is_proposed,
            )
            for workload, drawn, table, is_sample in zip(
                workloads, subnets, costs, samples or [False] * len(workloads), strict=True
            )
        ),
        policy=shared.policy,
        bulk=shared.bulk or execution.pipeline.stages,
        steps=shared.steps,
        wiring=wiring or wiring_of(workloads),
    )


def make_plan(
    workloads: Sequence[Workload],
    execution: Execution,
    subnets: Sequence[Sequence[Subnet]],
    costs: Sequence[CostTable | None] | None = None,
    wiring: Wiring | None = None,
    samples: Sequence[bool] = (),
) -> Plan:
    """Balance the stages, give them memory, choose the order; the same for the same costs.

    Args:
        workloads: of each stream; one synchronisation policy for all.
        execution: what the user asked for.
        subnets: of each stream; of one that a strategy proposes, some that stand for it.
        costs: of each stream; measured here where they are not given.
        wiring: how the streams are joined; by default, as each says of itself.
        samples: of each stream, whether its subnets stand for more, which are drawn as it goes.

    Raises:
        ConfigError: when the memory budget is below the least that works.
        StageFailedError: when a layer, the loss or the data raises in the profile.
    """
    if costs is None:
        costs = planning_costs(workloads, execution)
    pipeline = make_pipeline(workloads, execution, subnets, costs, wiring, samples)

    def timing(pipeline: Pipeline, memory: MemoryPlan | None) -> StreamCosts:
        return measured_timing(pipeline, execution, memory)

    return chosen_plan(pipeline, execution, _sizes(workloads, execution), timing)


def _buffered(workload: Workload) -> frozenset[tuple[int, int]]:
    return buffered_layers(workload.space, workload.recipe.norms == "deferred")


def _sizes(workloads: Sequence[Workload], execution: Execution) -> StreamSizes | None:
    """Of the layers of all streams; None where there is no budget to plan."""
    if not execution.memory.budget:
        return None
    known: dict[object, DeviceSizes] = {}
    streams = []
    for workload in workloads:
        recipe = workload.recipe
        options = str(recipe.optimizer_options), str(recipe.groups)
        key = id(workload.space), recipe.optimizer, options, recipe.ema > 0
        if key not in known:
            known[key] = DeviceSizes(measure_sizes(workload), workload.space.rules)
        streams.append(known[key])
    return StreamSizes(tuple(streams))


def measured_costs(
    workloads: Sequence[Workload],
    execution: Execution,
    copies: int = 1,
    say: Callable[[str], None] | None = None,
) -> tuple[CostTable, ...]:
    """What every layer costs on this machine, measured once per space and kept.

    With several ``copies``, where so many processes compute at once.
    """
    known: dict[int, CostTable] = {}
    for workload in workloads:
        if id(workload.space) not in known:
            known[id(workload.space)] = _cost(workload, execution, copies, say)
    return tuple(known[id(workload.space)] for workload in workloads)


def measured_sizes(workload: Workload, execution: Execution) -> DeviceSizes | None:
    """What every layer takes on a device; None where there is no budget to plan."""
    if not execution.memory.budget:
        return None
    return DeviceSizes(measure_sizes(workload), workload.space.rules)


def cores_for(workload: Workload, execution: Execution, workers: int) -> int:
    """How many of these workers compute at once on this machine's cores; 1 for GPUs."""
    if first_gpu(execution.hardware.device) != "cpu":
        return 1
    return max(1, min(workers, len(os.sched_getaffinity(0)) // workload.recipe.threads))


def _cost(
    workload: Workload, execution: Execution, copies: int, say: Callable[[str], None] | None
) -> CostTable:
    """On the run's kind of device."""
    device = first_gpu(execution.hardware.device)
    name = device if device == "cpu" else find_gpus().name_of(device)
    return cached_profile(
        workload,
        lambda: profile_apart(workload, execution.watch.timeout_seconds, device, copies, say),
        device=name if copies == 1 else f"{name}, {copies} at once",
    )

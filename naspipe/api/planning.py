"""Plan runs from a profile: partitions, memory, dispatch order and window."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch.nn import Embedding

from naspipe.checks.inputs import keeps_statistics
from naspipe.checks.sketched import buffered_layers, measure_sizes, sketch
from naspipe.config.blocks import Block
from naspipe.config.execution import Execution, first_gpu
from naspipe.config.ids import Subnet
from naspipe.config.rules import Lag
from naspipe.config.wiring import Wiring
from naspipe.jobs.workload import Workload, common, wiring_of
from naspipe.machine.gpus import find_gpus
from naspipe.plan.bottlenecks import HeldBack, held_back
from naspipe.plan.chains import Chain, Stream
from naspipe.plan.costs import CostTable
from naspipe.plan.memory import DeviceSizes, MemoryPlan, StreamSizes
from naspipe.plan.pipeline import Pipeline, Plan
from naspipe.plan.simulation import chosen_plan, measured_timing
from naspipe.plan.virtual_costs import StreamCosts
from naspipe.profiling.counts import stateless_layers
from naspipe.profiling.profiles import cached_profile, profile_apart


def planning_costs(
    workloads: Sequence[Workload], execution: Execution, say: Callable[[str], None] | None = None
) -> tuple[CostTable | None, ...]:
    """Return the costs that the plan of each stream is based on; None if no plan needs costs.

    ``say`` is called if the profile takes more than a second.

    Raises:
        StageFailedError: if a layer, the loss or the data raises an error in the profile.
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
    """Return the parts of a run that schedules depend on; see :func:`make_plan`."""
    shared = common(workloads)
    samples = samples or [False] * len(workloads)
    streams = []
    for workload, drawn, table, is_sample in zip(workloads, subnets, costs, samples, strict=True):
        space, buffered = workload.space, None
        if shared.steps.passes > 1:  # then it matters which forwards must follow one another
            buffered = buffered_layers(space, workload.recipe.norms == "deferred")
        streams.append(
            Stream(
                Chain.of(space, buffered, stateless_layers(space)),
                tuple(drawn),
                table,
                output_bytes=workload.output_bytes,
                is_sample=is_sample or workload.is_proposed,
            )
        )
    return Pipeline(
        streams=tuple(streams),
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
    """Balance the stages, assign memory, and choose the order; deterministic for given costs.

    Args:
        workloads: one for each stream, with one synchronization policy for all.
        execution: as requested by the user.
        subnets: of each stream; a sample of them if a strategy proposes them.
        costs: of each stream; by default they are measured.
        wiring: how the streams are joined; by default, as each workload specifies.
        samples: for each stream, True if its subnets are a sample and others are drawn during the
            run.

    Raises:
        ConfigError: if the memory budget is below the minimum.
        StageFailedError: if a layer, the loss or the data raises an error in the profile.
    """
    if costs is None:
        costs = planning_costs(workloads, execution)
    pipeline = make_pipeline(workloads, execution, subnets, costs, wiring, samples)

    def timing(pipeline: Pipeline, memory: MemoryPlan | None) -> StreamCosts:
        return measured_timing(pipeline, execution, memory)

    return chosen_plan(pipeline, execution, _sizes(workloads, execution), timing)


def _sizes(workloads: Sequence[Workload], execution: Execution) -> StreamSizes | None:
    """Return the sizes of the layers of all streams; None if there is no memory budget."""
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
    """Measure the cost of every layer on this machine, once per space; the result is cached.

    If ``copies`` is above 1, this many processes compute concurrently.
    """
    device, seconds = first_gpu(execution.hardware.device), execution.watch.timeout_seconds
    name = device if device == "cpu" else find_gpus().name_of(device)
    if copies > 1:
        name = f"{name}, {copies} at once"
    known: dict[int, CostTable] = {}
    for workload in workloads:
        if id(workload.space) not in known:
            measure = partial(profile_apart, workload, seconds, device, copies, say)
            known[id(workload.space)] = cached_profile(workload, measure, device=name)
    return tuple(known[id(workload.space)] for workload in workloads)


def measured_sizes(workload: Workload, execution: Execution) -> DeviceSizes | None:
    """Return the bytes of every layer on a device; None if there is no memory budget."""
    if not execution.memory.budget:
        return None
    return DeviceSizes(measure_sizes(workload), workload.space.rules)


def cores_for(workload: Workload, execution: Execution, workers: int) -> int:
    """Return how many of ``workers`` can compute concurrently on this machine; 1 for GPUs."""
    if first_gpu(execution.hardware.device) != "cpu":
        return 1
    return max(1, min(workers, len(os.sched_getaffinity(0)) // workload.recipe.threads))


def gain_notes(
    workloads: Sequence[Workload],
    execution: Execution,
    subnets: Sequence[Sequence[Subnet]],
    costs: Sequence[CostTable | None],
) -> list[str]:
    """Return notes on what limits the speed-up of a run.

    It is empty for one worker. Only streams of one space under csp, without teachers and probes,
    are checked for too little parallelism.
    """
    first, workers = workloads[0], execution.workers
    if workers == 1:
        return []
    notes = [said for said in [_spacing(first), *map(_growing, workloads)] if said]
    spaces = {id(each.space) for each in workloads}
    is_plain = len(spaces) == 1 and all(each.is_trained for each in workloads)
    is_plain &= not any(each.recipe.steps.probes for each in workloads)
    if is_plain and first.definition.policy == "csp":
        streams = tuple(
            Stream(
                Chain.of(workload.space, stateless=stateless_layers(workload.space)),
                tuple(drawn),
                table,
            )
            for workload, drawn, table in zip(workloads, subnets, costs, strict=True)
        )
        pipeline = Pipeline(streams=streams, steps=common(workloads).steps)
        if (found := held_back(pipeline, workers)) is not None:
            notes.append(_held(first, execution, found))
    return notes


def _spacing(workload: Workload) -> str | None:
    """Return a note if a sampler cannot space subnets as far as requested."""
    match = re.fullmatch("spaced:([0-9]+)", workload.definition.sampler)
    counts = [each for each in workload.space.drawn_counts if each > 1]
    if match is None or not counts or int(match[1]) < min(counts):
        return None
    least = min(counts)
    what = "decision" if workload.space.decisions else "block"
    return (
        f"sampler {match[0]}: {what} {workload.space.drawn_counts.index(least)} has {least} "
        f"candidates, so one of them comes again after {least - 1} other subnet"
        f"{'s' * (least > 2)} there, not after {match[1]}; spaced:{least - 1} says so"
    )


def _growing(workload: Workload) -> str | None:
    """Return a note on a layer whose lag has hardly grown by the end of the run."""
    definition = workload.definition
    if definition.policy != "csp":
        return None
    for name, rule in workload.space.shared_rules.items():
        if isinstance(rule, Lag) and definition.steps < 2 * rule.over:
            grown = replace(rule, over=0)
            return (
                f"layer {name} is {rule}: in the first {min(rule.over, definition.steps)} of "
                f'{definition.steps} steps stages wait for it; --set "rule.{name}={grown}" is '
                f"faster at once, and changes what is trained, see docs/rules.md"
            )
    return None


def _held(workload: Workload, execution: Execution, found: HeldBack) -> str:
    way = execution.pipeline
    on = f"{way.groups} groups of {way.stages}" if way.groups > 1 else f"{way.stages} stages"
    busy = f"{found.busy_stages:.1f}"
    head = f"this run gains little from {on}: at most {busy} can be busy, as "
    if not found.is_chosen:
        passes = "subnets" if workload.space.is_elastic else "accumulate"
        return (
            f"{head}every step reads all that the step before wrote; use passes={passes}:N, "
            f"whose passes fill the stages (docs/schedule.md)"
        )
    reasons = [_layer(workload, block, execution.workers) for block in found.layers]
    if found.is_gated:
        reasons.append(
            "with clip_global_norm no layer is written before all gradients of a step are there: "
            "use clip_layer_norm, or passes=accumulate:N"
        )
    if not reasons:
        return (
            f"{head}most subnets share a layer with the one before; use a sampler that spaces "
            f"them (spaced:W), more candidates, or several streams (docs/schedule.md)"
        )
    return f"{head}{'; and '.join(reasons)}; this changes what is trained, see docs/rules.md"


def _layer(workload: Workload, block: int, workers: int) -> str:
    """Return the recommendation of docs/rules.md for a layer near the input."""
    space = workload.space
    name, parts = space.labels[block], list(sketch(space, block, 0).modules())
    is_spaced = workload.definition.sampler.startswith("spaced:")
    rule = Lag(3 if is_spaced and workers >= 4 else 1, predicts=True)
    if any(isinstance(part, Embedding) for part in parts):
        rule = Lag(8)
    if isinstance(space.blocks[block], Block):
        predicts = ", predicts=True" * rule.predicts
        return (
            f"block {name} has one candidate only, so every step reads what the one before wrote: "
            f"make it npp.Shared(NAME, ..., rule=npp.Lag({rule.subnets}{predicts}))"
        )
    todo = f'--set "rule.{name}={rule}"'
    norm = next((type(part).__name__ for part in parts if keeps_statistics(part)), None)
    if norm and workload.recipe.norms != "deferred":
        todo += f" with --set norms=deferred, or {rule} with GroupNorm in the place of its {norm}"
    return (
        f"every step reads layer {name} (exact) behind the WRITE of the one before: use {todo}, or "
        f"frozen"
    )

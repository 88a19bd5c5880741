"""Lines that say at a run's start that it will hardly gain from its stages, and what to change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from torch.nn import Embedding

from naspipe.config.definition import Execution
from naspipe.config.ids import Subnet
from naspipe.config.rules import Lag
from naspipe.config.space import Block, Space
from naspipe.frontend.checks.input_checks import keeps_statistics
from naspipe.planning.cost import CostTable
from naspipe.runtime.jobs.workload import Workload, common
from naspipe.runtime.measuring.stateless_layers import stateless_layers
from naspipe.runtime.sketching.layer_sizes import sketch
from naspipe.sim.chains import Chain, Stream
from naspipe.sim.held_back import HeldBack, held_back
from naspipe.sim.pipeline import Pipeline


def gain_notes(
    workloads: Sequence[Workload],
    execution: Execution,
    subnets: Sequence[Sequence[Subnet]],
    costs: Sequence[CostTable | None],
) -> list[str]:
    """A line each; none for one worker, for policies that are no plain loop's, and for teachers.

    Args:
        workloads: of each stream.
        execution: how many stages and groups there are.
        subnets: of each stream; of one that a strategy proposes, some that stand for it.
        costs: of each stream, where they are known.
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
            Stream(_chain(workload.space), tuple(drawn), table)
            for workload, drawn, table in zip(workloads, subnets, costs, strict=True)
        )
        pipeline = Pipeline(streams=streams, steps=common(workloads).steps)
        if (found := held_back(pipeline, workers)) is not None:
            notes.append(_held(first, execution, found))
    return notes


def _chain(space: Space) -> Chain:
    return Chain.of(space, stateless=stateless_layers(space))


def _spacing(workload: Workload) -> str | None:
    """Of a sampler that cannot space as far as it says."""
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
    """Of a layer whose lag has hardly grown when the run ends."""
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
    groups, stages, workers = (
        execution.pipeline.groups,
        execution.pipeline.stages,
        execution.workers,
    )
    on = f"{groups} groups of {stages}" if groups > 1 else f"{stages} stages"
    busy = f"{found.busy_stages:.1f}"
    head = f"this run gains little from {on}: at most {busy} can be busy, as "
    if not found.is_chosen:
        passes = "subnets" if workload.space.is_elastic else "accumulate"
        return (
            f"{head}every step reads all that the step before wrote; use passes={passes}:N, "
            f"whose passes fill the stages (docs/schedule.md)"
        )
    reasons = [_layer(workload, block, workers) for block in found.layers]
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
    space = workload.space
    name, rule = space.labels[block], _late(workload, block, workers)
    if isinstance(space.blocks[block], Block):
        predicts = ", predicts=True" * rule.predicts
        return (
            f"block {name} has one candidate only, so every step reads what the one before wrote: "
            f"make it npp.Shared(NAME, ..., rule=npp.Lag({rule.subnets}{predicts}))"
        )
    todo = f'--set "rule.{name}={rule}"'
    norm = _norm(space, block)
    if norm and workload.recipe.norms != "deferred":
        todo += f" with --set norms=deferred, or {rule} with GroupNorm in the place of its {norm}"
    return (
        f"every step reads layer {name} (exact) behind the WRITE of the one before: use {todo}, or "
        f"frozen"
    )


def _late(workload: Workload, block: int, workers: int) -> Lag:
    """What docs/rules.md recommends for a layer in front."""
    parts = sketch(workload.space, block, 0).modules()
    if any(isinstance(part, Embedding) for part in parts):
        return Lag(8)
    is_spaced = workload.definition.sampler.startswith("spaced:")
    return Lag(3 if is_spaced and workers >= 4 else 1, predicts=True)


def _norm(space: Space, block: int) -> str | None:
    """The kind of norm in a layer that keeps running statistics."""
    parts = sketch(space, block, 0).modules()
    return next((type(part).__name__ for part in parts if keeps_statistics(part)), None)

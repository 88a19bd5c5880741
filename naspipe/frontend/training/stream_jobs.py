"""One stream of a training: checked, planned, and its log looked at when it is over."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError, StorageError
from naspipe.config.ids import StageId, StreamId, Subnet
from naspipe.config.space import Shared
from naspipe.frontend.checks.data_checks import check_batch
from naspipe.frontend.checks.input_checks import check_grouping, check_layers
from naspipe.frontend.checks.loss_checks import check_loss
from naspipe.frontend.checks.made_of_checks import record_made_of
from naspipe.frontend.checks.optimizer_checks import check_optimizer
from naspipe.frontend.checks.probe_checks import check_probes
from naspipe.frontend.given.drawn_source import DrawnSource, draw_stream
from naspipe.frontend.given.pass_streams import strategy_maker
from naspipe.frontend.given.strategy_source import StrategySource
from naspipe.planning.cost import COLUMNS, CostTable
from naspipe.runtime.jobs.job import StreamJob
from naspipe.runtime.jobs.workload import Workload
from naspipe.schedule.traits import causal_policies, traits_of
from naspipe.sim.cutting import is_joint
from naspipe.sim.pipeline import StreamPlan
from naspipe.stage.builder import build_controller
from naspipe.streams.from_file import write_stream
from naspipe.trace.results.costs_file import write_costs
from naspipe.trace.results.reserved_space import reserve
from naspipe.trace.results.run_directory import RunDirectory
from naspipe.trace.storage.writing import writing


def check_stream(
    number: StreamId, workload: Workload, execution: Execution, is_drawn_beside: bool = False
) -> tuple[Subnet, ...]:
    """The subnets of a stream, or what stands for them; checks everything else of it too.

    Args:
        number: of the stream.
        workload: its space, data and definition.
        execution: how it is carried out.
        is_drawn_beside: whether the stream is drawn beside the training.

    Raises:
        ConfigError: for what cannot be used.
    """
    space, definition = workload.space, workload.definition
    check_optimizer(definition.recipe)
    order = execution.pipeline.order
    build_controller(
        StageId(0),
        [space.rules],
        policy=definition.policy,
        order=order if order != "auto" else "paper",
        steps=definition.recipe.steps,
    )
    if execution.pipeline.stages > len(space) and not is_joint(execution):
        raise ConfigError(
            f"{execution.pipeline.stages} stages for {len(space)} blocks: expected at most one "
            f"stage per block; choose --stages {len(space)} or less"
        )
    if workload.is_proposed:
        _check_causal(workload)
    if definition.recipe.steps.probes:
        check_probes(workload, execution)
    subnets = draw_stream(number, workload, is_drawn_beside)
    check_batch(workload)
    check_loss(workload)
    check_grouping(workload, execution.pipeline.groups)
    check_layers(workload)
    return subnets


def _check_causal(workload: Workload) -> None:
    definition, recipe = workload.definition, workload.recipe
    learns = workload.make_strategy is not None
    who = f"sampler {definition.sampler}" if learns else f"probes={recipe.probes}"
    if not traits_of(definition.policy).is_causal:
        raise ConfigError(
            f"{who}: expected the policy {causal_policies()}, as subnets follow from losses, found "
            f"{definition.policy}, whose losses depend on the stages"
        )
    if learns and recipe.steps.passes > 1:
        raise ConfigError(
            f"{who}: expected passes=one and probes=none with a strategy that learns, found "
            f"passes={recipe.passes}, probes={recipe.probes}"
        )


def stream_job(
    number: StreamId,
    workload: Workload,
    plan: StreamPlan,
    directory: RunDirectory,
    unit: int = 0,
) -> StreamJob:
    """A stream that is known, or one that is proposed or drawn as it goes.

    Args:
        number: of the stream.
        workload: its space, data and definition.
        plan: how it is carried out.
        directory: where it is recorded.
        unit: of one that is drawn beside the training: sequence IDs that become known together.
    """
    job = StreamJob(
        workload=workload, planned=(), directory=directory, stateless=plan.stateless,
        split=plan.split,
    )  # fmt: skip
    if unit and plan.cut is not None:
        drawn = DrawnSource(workload, number, plan.cut, unit, directory.stream)
        return replace(job, cuts=plan.cuts, source=drawn)
    make_strategy = strategy_maker(workload)
    if make_strategy is None or plan.cut is None:
        return replace(job, planned=plan.planned, cuts=frozenset(plan.partitions))
    definition, recipe = workload.definition, workload.recipe
    source = StrategySource(
        make_strategy,
        workload.space,
        number,
        plan.cut,
        delay=definition.num_passes if recipe.steps.probes else recipe.feedback_delay,
        num_subnets=definition.num_passes,
        record=directory.stream,
        decides=workload.make_strategy is not None,
    )
    return replace(job, source=source)


def begin_record(stream: StreamJob, manifest: Mapping[str, Any], costs: CostTable | None) -> None:
    """What is known of a new stream, in its directory.

    Args:
        stream: with its subnets.
        manifest: of the run.
        costs: that the plan followed, if any.

    Raises:
        ConfigError: when the directory cannot be made.
        StorageError: when it cannot be written; nothing is left of it then.
    """
    if not stream.directory.path.exists():
        stream.directory.create()
    subnets = [each.subnet for each in stream.planned]
    try:
        reserve(stream.directory, manifest)
        with writing(stream.directory.stream):
            write_stream(stream.directory.stream, choices_of(stream.workload, subnets))
        with writing(stream.directory.made_of):
            record_made_of(stream.directory, stream.workload)
        if costs is not None:
            with writing(stream.directory.costs):
                write_costs(stream.directory.costs, COLUMNS, costs.rows)
        with writing(stream.directory.manifest):
            stream.directory.write_manifest(dict(manifest))
    except StorageError:
        shutil.rmtree(stream.directory.path, ignore_errors=True)
        raise


def choices_of(workload: Workload, subnets: Sequence[Subnet]) -> list[tuple[int, ...]]:
    """Of every subnet, the candidate of each choice block; of an empty one, those before it."""
    is_choice = [not isinstance(block, Shared) for block in workload.space.blocks]
    found: list[tuple[int, ...]] = []
    for subnet in subnets:
        is_empty = found and not subnet.chain
        found.append(found[-1] if is_empty else tuple(compress(subnet.chain, is_choice)))
    return found


def comes_new(directory: RunDirectory, workload: Workload) -> bool:
    """Whether it is a teacher's, whose labels came from elsewhere in earlier lives."""
    return not workload.is_written and not directory.path.exists()

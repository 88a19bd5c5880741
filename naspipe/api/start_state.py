"""Begin a run in new directories, or take over the contents of existing ones.

New directories have the status ``planning`` until the run begins.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

from naspipe.api.attempts import check_resumable
from naspipe.checks.data import check_batch, check_same_data
from naspipe.checks.fingerprint import check_made_of, record_made_of
from naspipe.checks.inputs import check_grouping, check_layers, check_probes
from naspipe.checks.loss import check_loss
from naspipe.checks.optimizer import check_optimizer
from naspipe.config.blocks import Shared
from naspipe.config.errors import ConfigError, StorageError
from naspipe.config.execution import Execution
from naspipe.config.ids import StageId, StreamId, Subnet
from naspipe.engine.builder import build_controller
from naspipe.engine.policies import causal_policies, traits_of
from naspipe.inputs.subnet_sources import DrawnSource, StrategySource, draw_stream, strategy_maker
from naspipe.jobs.workload import Workload
from naspipe.launch.claim import Claim
from naspipe.plan.chains import is_joint
from naspipe.plan.costs import COLUMNS, CostTable
from naspipe.plan.pipeline import StreamPlan
from naspipe.profiling.counts import stateless_layers
from naspipe.store.files import writing
from naspipe.store.labels import describe_space, described, settings_of
from naspipe.store.run_directory import RunDirectory, reserve, write_costs
from naspipe.streams.stream_file import write_stream
from naspipe.worker.job import StreamJob


def check_stream(
    number: StreamId, workload: Workload, execution: Execution, is_drawn_beside: bool = False
) -> tuple[Subnet, ...]:
    """Check all settings of a stream; return its subnets, or a sample of them."""
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
        learns = workload.make_strategy is not None
        who = f"sampler {definition.sampler}" if learns else f"probes={definition.recipe.probes}"
        if not traits_of(definition.policy).is_causal:
            raise ConfigError(
                f"{who}: expected the policy {causal_policies()}, as subnets follow from losses, "
                f"found {definition.policy}, whose losses depend on the stages"
            )
        if learns and definition.recipe.steps.passes > 1:
            raise ConfigError(
                f"{who}: expected passes=one and probes=none with a strategy that learns, found "
                f"passes={definition.recipe.passes}, probes={definition.recipe.probes}"
            )
    if definition.recipe.steps.probes:
        check_probes(workload, execution)
    subnets = draw_stream(number, workload, is_drawn_beside)
    check_batch(workload)
    check_loss(workload)
    check_grouping(workload, execution.pipeline.groups)
    check_layers(workload)
    return subnets


def stream_job(
    number: StreamId,
    workload: Workload,
    plan: StreamPlan,
    directory: RunDirectory,
    unit: int = 0,
) -> StreamJob:
    """Return the job of a stream whose subnets are known, proposed or drawn during training.

    For a drawn stream, ``unit`` is the number of sequence IDs that become known together; otherwise
    0.
    """
    job = StreamJob(
        workload=workload,
        planned=(),
        directory=directory,
        stateless=plan.stateless,
        split=plan.split,
    )
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
    """Write the initial records of a new stream; ``costs`` are those that the plan is based on.

    Raises:
        ConfigError: if the directory cannot be made.
        StorageError: if it cannot be written; the directory is then removed.
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
    """Return the choices of every subnet; an empty subnet has those of its predecessor."""
    is_choice = [not isinstance(block, Shared) for block in workload.space.blocks]
    found: list[tuple[int, ...]] = []
    for subnet in subnets:
        is_empty = found and not subnet.chain
        found.append(found[-1] if is_empty else tuple(compress(subnet.chain, is_choice)))
    return found


def comes_new(directory: RunDirectory, workload: Workload) -> bool:
    """Return True for a teacher whose labels had another source in earlier attempts."""
    return not workload.is_written and not directory.path.exists()


PLANNING = "planning"
IF_EXISTS = "if_exists"
"""The value of ``resume`` that resumes an existing run and begins a new one otherwise."""


def asked_resume(resume: bool | str, run_dir: str | Path | None) -> dict[str, Any]:
    """Return the ``resumes`` and ``may_resume`` of a training for a user's ``resume``."""
    if resume not in (True, False, IF_EXISTS):
        raise ConfigError(f"resume: expected True, False or {IF_EXISTS!r}, found {resume!r:.80}")
    if resume and run_dir is None:
        raise ConfigError("resume: expected the run_dir of the run to go on with")
    return {"resumes": resume is True, "may_resume": resume == IF_EXISTS}


def is_begun(statuses: Iterable[str | None]) -> bool:
    """Return True if there is a run to resume; the status of a missing manifest is None."""
    return any(status not in (None, PLANNING) for status in statuses)


def goes_on(directories: Sequence[RunDirectory]) -> bool:
    """Return True if the directories hold a run to resume.

    Directories of a run that ended during planning are removed.

    Raises:
        ConfigError: if another process is planning a run there, or a directory has other contents.
    """
    found = {each: each.read_manifest() for each in directories if each.manifest.exists()}
    statuses = [str(manifest.get("status")) for manifest in found.values()]
    if is_begun(statuses):
        return True
    for directory in found:
        with Claim(directory.path):
            shutil.rmtree(directory.path, ignore_errors=True)
    return False


def take_over(
    stack: ExitStack, streams: Iterable[tuple[RunDirectory, Workload, tuple[Subnet, ...], bool]]
) -> list[dict[str, Any]]:
    """Claim the directories of a resumed run; return their manifests.

    ``streams`` contains for each its directory, workload and subnets, and True if more subnets are
    drawn during training.

    Raises:
        ConfigError: for a directory of another run, or one that another process is training.
    """
    earlier = []
    for directory, workload, subnets, is_drawn in streams:
        if comes_new(directory, workload):
            continue
        comes_later = workload.is_proposed or is_drawn
        choices = None if comes_later else choices_of(workload, subnets)
        earlier.append(check_resumable(directory, workload.definition, choices))
        check_same_data(directory, workload, earlier[-1])
        check_made_of(directory, workload)
        _check_settings(directory, workload, earlier[-1])
        _check_stateless(directory, workload, earlier[-1])
        stack.enter_context(Claim(directory.path))
    return earlier


def _check_stateless(
    directory: RunDirectory, workload: Workload, earlier: Mapping[str, Any]
) -> None:
    """Reject a resume if the set of stateless layers has changed since the run began.

    The access log holds no versions of stateless layers, so all attempts must agree on them.
    Another version of torch may fail to make a layer on its meta device; the layer then counts as
    one with state.
    """
    recorded = earlier.get("stateless", [])
    own = described(workload.space, stateless_layers(workload.space))["stateless"]
    if recorded != own:
        differing = ", ".join(sorted(set(recorded) ^ set(own)))
        raise ConfigError(
            f"{directory.path}: expected the same layers without state as when the run was begun, "
            f"found a difference in {differing}; resume it with the code and the version of torch "
            f"that it was begun with"
        )


def _check_settings(
    directory: RunDirectory, workload: Workload, earlier: Mapping[str, Any]
) -> None:
    """Reject a resume with other settings of elastic layers.

    Options are recorded by number, and the numbers depend on these settings.
    """
    recorded, own = (
        settings_of(earlier.get("space", {})),
        settings_of(describe_space(workload.space)),
    )
    if recorded != own:
        pairs = [pair for pair in zip(recorded, own, strict=False) if len(set(pair)) > 1]
        expected, found = pairs[0] if pairs else (len(recorded), len(own))
        raise ConfigError(
            f"{directory.path}: expected the settings of elastic layers that the run was begun "
            f"with, {expected}, found {found}; train anew with init_from= for another phase"
        )


@contextmanager
def planning(
    directories: Sequence[RunDirectory], workloads: Sequence[Workload], execution: Execution
) -> Iterator[None]:
    """Hold new directories, each with a manifest of the planned run.

    If planning fails before another status is written, they are removed, so that nothing is left of
    a run that never began.

    Raises:
        ConfigError: if one of them already exists, or cannot be made.
    """
    parents = {each for directory in directories for each in directory.path.absolute().parents}
    deepest_first = sorted(parents, key=lambda path: -len(path.parts))
    above = [path for path in deepest_first if not path.exists()]
    made: list[RunDirectory] = []
    with ExitStack() as stack:
        stack.push(lambda kind, error, trace: _remove(made, above) if kind else None)
        for directory, workload in zip(directories, workloads, strict=True):
            directory.check_new()
            made.append(directory)
            directory.create()
            stack.enter_context(Claim(directory.path))
            directory.write_manifest(
                {
                    "format": 1,
                    "status": PLANNING,
                    "definition": workload.definition.as_dict(),
                    "requested": execution.as_dict(),
                    "space": describe_space(workload.space),
                }
            )
        yield


def _remove(directories: Sequence[RunDirectory], above: Sequence[Path]) -> None:
    """Remove directories, and the parents that were created for them."""
    for directory in directories:
        is_there = directory.manifest.exists()
        status = directory.read_manifest().get("status") if is_there else None
        if status in (None, PLANNING):
            shutil.rmtree(directory.path, ignore_errors=True)
    for path in above:
        with suppress(OSError):  # another process may have put something there
            path.rmdir()

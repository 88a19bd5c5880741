"""From a space, its data and a definition to a finished run directory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from naspipe.core.access import Access
from naspipe.core.config import Definition, Execution, Recipe
from naspipe.core.errors import ConfigError, InvariantError
from naspipe.core.ids import FIRST_STREAM, SequenceId, StageId, StreamId
from naspipe.core.space import Shared, Space
from naspipe.core.subnet import Subnet
from naspipe.frontend.checks import check_batch, check_data_path, check_device, check_layers
from naspipe.frontend.plan import make_plan
from naspipe.runtime.compute import Batches, Loss, Workload
from naspipe.runtime.environment import describe_environment
from naspipe.runtime.gpus import NO_GPUS, Gpus, find_gpus
from naspipe.runtime.launcher import check_endpoints, launch
from naspipe.runtime.optimizers import check_optimizer
from naspipe.runtime.reports import LaunchObserver
from naspipe.runtime.stage_process import Job, StreamJob
from naspipe.schedule.invariants import violations
from naspipe.sim.plan import Plan
from naspipe.stage.builder import build_controller
from naspipe.streams.from_file import write_stream
from naspipe.streams.samplers import draw_subnets
from naspipe.trace.labels import describe_space
from naspipe.trace.log import read_run_accesses, time_key
from naspipe.trace.metrics import bubble_ratio, hit_rate, stall_ratio
from naspipe.trace.run_directory import RunDirectory, stream_directories


def define(
    space: Space, data: Batches, loss: Loss, *, recipe: Recipe, **identity: Any
) -> Definition:
    """The definition of a run; ``identity`` is its steps, seed, sampler, scale and policy."""
    return Definition(
        space=space.name,
        data=dict(getattr(data, "record", None) or {"name": _name_of(data)}),
        loss=_name_of(loss),
        recipe=recipe,
        rules={name: str(rule) for name, rule in space.shared_rules.items()},
        **identity,
    )


def _name_of(thing: object) -> str:
    """A readable name of a callable, free of addresses."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Runs that are defined but not yet started: one, or several that share a pipeline.

    Each of several has a run directory of its own below ``path``, which is that of its solo run.
    """

    workloads: Sequence[Workload]
    execution: Execution
    path: Path
    observer: LaunchObserver

    @property
    def directories(self) -> list[RunDirectory]:
        """The run directory of each stream."""
        return stream_directories(self.path, len(self.workloads))

    def run(self) -> None:
        """Check everything, then train and leave complete run directories.

        Raises:
            ConfigError: when the input cannot be used; nothing has been written then, unless
                only a stage could find it: the manifest then says ``failed``.
            StageFailedError: when a stage raised; the manifest then says ``failed``.
        """
        subnets = self._check()
        plan = make_plan(self.workloads, self.execution, subnets)
        job = self._job(plan, subnets)
        manifests = [self._manifest(stream, plan) for stream in job.streams]
        for stream, manifest in zip(job.streams, manifests, strict=True):
            stream.directory.create()
            choices = [_choices(stream.workload.space, subnet) for subnet in stream.subnets]
            write_stream(stream.directory.stream, choices)
            stream.directory.write_manifest(manifest)
        start_ns = time.monotonic_ns()
        try:
            stages = launch(job, self.observer)
        except BaseException as error:
            for stream, manifest in zip(job.streams, manifests, strict=True):
                failure = {**manifest, "status": "failed", "failure": str(error)}
                stream.directory.write_manifest(failure)
            raise
        seconds = (time.monotonic_ns() - start_ns) / 1e9
        accesses = [read_run_accesses(stream.directory.path) for stream in job.streams]
        for stream, found in zip(job.streams, accesses, strict=True):
            _check_order(stream, found, job.bulk)
        measured = {**self._measure(seconds, accesses), "stages": stages}
        for stream, manifest in zip(job.streams, manifests, strict=True):
            speed = {"steps_per_second": len(stream.subnets) / seconds}
            complete = {"status": "complete", "measured": {**measured, **speed}}
            stream.directory.write_manifest({**manifest, **complete})

    def _job(self, plan: Plan, subnets: Sequence[tuple[Subnet, ...]]) -> Job:
        streams = [
            StreamJob(
                workload=workload,
                subnets=of_stream,
                partitions=cut.partitions,
                priorities=cut.priorities,
                directory=directory,
            )
            for workload, of_stream, cut, directory in zip(
                self.workloads, subnets, plan.streams, self.directories, strict=True
            )
        ]
        return Job(
            streams=tuple(streams),
            execution=replace(self.execution, order=plan.order, window=plan.window),
            bulk=self.workloads[0].definition.bulk or self.execution.stages,
            memory=plan.memory,
        )

    @property
    def _gpus(self) -> Gpus:
        """Those of this machine, where they matter: looking for them takes seconds."""
        return NO_GPUS if self.execution.device == "cpu" else find_gpus()

    def _check(self) -> list[tuple[Subnet, ...]]:
        """Everything that can be known to be wrong before anything is written."""
        for directory in self.directories:
            directory.check_new()
        check_device(self.execution.device, len(self._gpus))
        check_data_path(self.execution, len(self._gpus))
        policies = {workload.definition.policy for workload in self.workloads}
        if len(policies) > 1:
            raise ConfigError(
                f"policy: expected one for all streams, found {' and '.join(sorted(policies))}"
            )
        subnets = [
            self._check_stream(StreamId(number), workload)
            for number, workload in enumerate(self.workloads)
        ]
        check_endpoints(self.execution)
        return subnets

    def _check_stream(self, number: StreamId, workload: Workload) -> tuple[Subnet, ...]:
        space, definition = workload.space, workload.definition
        check_optimizer(definition.recipe)
        order = self.execution.order
        build_controller(
            StageId(0),
            [space.rules],
            policy=definition.policy,
            order=order if order != "auto" else "paper",
        )
        if self.execution.stages > len(space):
            raise ConfigError(
                f"{self.execution.stages} stages for {len(space)} blocks: expected at most one "
                f"stage per block; choose --stages {len(space)} or less"
            )
        stream = draw_subnets(definition.sampler, space, definition.seed, definition.steps)
        check_batch(workload)
        check_layers(workload)
        return tuple(
            Subnet(number, SequenceId(place), space.chain(choices))
            for place, choices in enumerate(stream)
        )

    def _manifest(self, stream: StreamJob, plan: Plan) -> dict[str, Any]:
        space, definition = stream.workload.space, stream.workload.definition
        return {
            "format": 1,
            "status": "running",
            "definition": definition.as_dict(),
            "execution": {
                **self.execution.as_dict(),
                "order": plan.order,
                "window": plan.window,
                "budgets": list(plan.memory.budgets) if plan.memory else [],
                "partitions": sorted(set(map(str, stream.partitions))),
                "streams": len(self.workloads),
            },
            "environment": describe_environment(self.execution.device, self._gpus),
            "space": describe_space(space),
            "measured": {},
        }

    def _measure(self, seconds: float, accesses: Sequence[list[Access]]) -> dict[str, Any]:
        """Of the whole pipeline."""
        together = sorted(
            (
                access._replace(layer=access.layer._replace(stream=StreamId(number)))
                for number, found in enumerate(accesses)
                for access in found
            ),
            key=time_key,
        )
        return {
            "seconds": seconds,
            "bubble_ratio": bubble_ratio(together, self.execution.stages),
            "hit_rate": hit_rate(together),
            "stall_ratio": stall_ratio(together, self.execution.stages),
        }


def _choices(space: Space, subnet: Subnet) -> tuple[int, ...]:
    return tuple(
        candidate
        for candidate, block in zip(subnet.chain, space.blocks, strict=True)
        if not isinstance(block, Shared)
    )


def _check_order(stream: StreamJob, accesses: Sequence[Access], bulk: int) -> None:
    """A finished stream's log must be what its policy allows.

    Raises:
        InvariantError: when it is not: a bug, never bad luck.
    """
    rules, policy = stream.workload.space.rules, stream.workload.definition.policy
    alone = [subnet._replace(stream=FIRST_STREAM) for subnet in stream.subnets]
    if broken := list(violations(accesses, rules, alone, policy, bulk)):
        raise InvariantError(f"{len(broken)} rules of the policy {policy} broken: {broken[0]}")

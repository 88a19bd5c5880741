"""From a space, its data and a definition to a finished run directory."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from naspipe.core.access import Access
from naspipe.core.config import Definition, Execution, Recipe
from naspipe.core.errors import ConfigError, InvariantError
from naspipe.core.ids import SequenceId, StageId, StreamId
from naspipe.core.space import Shared, Space
from naspipe.core.subnet import Subnet
from naspipe.frontend.checks import check_batch, check_device, check_layers
from naspipe.frontend.plan import Plan, make_plan
from naspipe.runtime.compute import Batches, Loss, Workload
from naspipe.runtime.environment import describe_environment
from naspipe.runtime.launcher import check_endpoints, launch
from naspipe.runtime.optimizers import check_optimizer
from naspipe.runtime.reports import LaunchObserver
from naspipe.runtime.stage_process import Job
from naspipe.schedule.invariants import violations
from naspipe.stage.builder import build_controller
from naspipe.streams.from_file import write_stream
from naspipe.streams.samplers import draw_stream
from naspipe.trace.log import read_run_accesses
from naspipe.trace.metrics import bubble_ratio, hit_rate, stall_ratio
from naspipe.trace.run_directory import RunDirectory


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
    """A run that is defined but not yet started."""

    workload: Workload
    execution: Execution
    directory: RunDirectory
    observer: LaunchObserver

    def run(self) -> None:
        """Check everything, then train and leave a complete run directory.

        Raises:
            ConfigError: when the input cannot be used; nothing has been written then, unless
                only a stage could find it: the manifest then says ``failed``.
            StageFailedError: when a stage raised; the manifest then says ``failed``.
        """
        subnets = self._check()
        plan = make_plan(self.workload, self.execution, subnets)
        self.directory.create()
        write_stream(self.directory.stream, [self._choices(subnet) for subnet in subnets])
        manifest = self._manifest(plan)
        self.directory.write_manifest(manifest)
        job = Job(
            workload=self.workload,
            execution=replace(self.execution, order=plan.order, window=plan.window),
            subnets=subnets,
            partitions=plan.partitions,
            priorities=plan.priorities,
            memory=plan.memory,
            directory=self.directory,
        )
        start_ns = time.monotonic_ns()
        try:
            stages = launch(job, self.observer)
        except BaseException as error:
            failure = {**manifest, "status": "failed", "failure": str(error)}
            self.directory.write_manifest(failure)
            raise
        seconds = (time.monotonic_ns() - start_ns) / 1e9
        accesses = read_run_accesses(self.directory.path)
        if broken := list(violations(accesses, self.workload.space.rules, subnets)):
            raise InvariantError(f"{len(broken)} rules of causal order broken: {broken[0]}")
        measured = {**self._measure(seconds, accesses), "stages": stages}
        self.directory.write_manifest({**manifest, "status": "complete", "measured": measured})

    def _check(self) -> tuple[Subnet, ...]:
        """Everything that can be known to be wrong before anything is written."""
        space, definition = self.workload.space, self.workload.definition
        self.directory.check_new()
        check_device(self.execution.device)
        check_optimizer(definition.recipe)
        build_controller(
            StageId(0),
            space.rules,
            policy=definition.policy,
            order=self.execution.order if self.execution.order != "auto" else "paper",
        )
        if self.execution.stages > len(space):
            raise ConfigError(
                f"{self.execution.stages} stages for {len(space)} blocks: expected at most one "
                f"stage per block; choose --stages {len(space)} or less"
            )
        stream = draw_stream(
            definition.sampler, space.candidate_counts, definition.seed, definition.steps
        )
        check_batch(self.workload)
        check_layers(self.workload)
        check_endpoints(self.execution)
        return tuple(
            Subnet(StreamId(0), SequenceId(number), space.chain(choices))
            for number, choices in enumerate(stream)
        )

    def _choices(self, subnet: Subnet) -> tuple[int, ...]:
        blocks = self.workload.space.blocks
        return tuple(
            candidate
            for candidate, block in zip(subnet.chain, blocks, strict=True)
            if not isinstance(block, Shared)
        )

    def _manifest(self, plan: Plan) -> dict[str, Any]:
        space, definition = self.workload.space, self.workload.definition
        return {
            "format": 1,
            "status": "running",
            "definition": definition.as_dict(),
            "execution": {
                **self.execution.as_dict(),
                "order": plan.order,
                "window": plan.window,
                "budgets": list(plan.memory.budgets) if plan.memory else [],
                "partitions": sorted(set(map(str, plan.partitions))),
            },
            "environment": describe_environment(),
            "space": {
                "name": space.name,
                "labels": list(space.labels),
                "shared": [isinstance(block, Shared) for block in space.blocks],
                "rules": [str(rule) for rule in space.rules],
                "candidates": [len(block.candidates) for block in space.blocks],
            },
            "measured": {},
        }

    def _measure(self, seconds: float, accesses: list[Access]) -> dict[str, Any]:
        return {
            "seconds": seconds,
            "steps_per_second": self.workload.definition.steps / seconds,
            "bubble_ratio": bubble_ratio(accesses, self.execution.stages),
            "hit_rate": hit_rate(accesses),
            "stall_ratio": stall_ratio(accesses, self.execution.stages),
        }

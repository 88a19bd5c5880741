"""From a space, its data and a definition to a finished run directory."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, repeat, starmap
from pathlib import Path
from typing import Any

from naspipe.api.attempts import Generations
from naspipe.api.finished_log import NOT_CHECKED, check_and_measure, take_whole_backwards
from naspipe.api.planning import gain_notes, make_plan, planning_costs
from naspipe.api.recording import check_metrics_server, check_tensorboard, recorded
from naspipe.api.start_state import (
    begin_record,
    check_stream,
    comes_new,
    goes_on,
    new_records,
    planning,
    stream_job,
    take_over,
)
from naspipe.api.validation_plan import check_validation, describe, plan_validation
from naspipe.checks.data import first_digests, last_batch_note
from naspipe.checks.fingerprint import changed_code_note, code_digest, code_digests, untold_notes
from naspipe.checks.inputs import check_proof, check_taught
from naspipe.checks.machine import check_data_path, check_device, check_limits, check_shared_gpus
from naspipe.checks.space import check_held_out, check_spaces
from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.config.ids import StreamId, Subnet
from naspipe.config.wiring import Tap, Wiring
from naspipe.data.loaders import close_all
from naspipe.distill.distillation import how_full
from naspipe.engine.policies import PolicyTraits, causal_policies, traits_of
from naspipe.inputs.subnet_sources import is_drawn_beside, why_known
from naspipe.jobs.batches_apart import batches_kept
from naspipe.jobs.workload import Workload, common, wiring_of
from naspipe.launch.claim import Claim
from naspipe.launch.hosts import OtherHosts
from naspipe.launch.stopping import ended_by_signals
from naspipe.machine.determinism import describe_environment
from naspipe.machine.forking import check_fit_for_forking
from naspipe.machine.gpus import NO_GPUS, Gpus, find_gpus
from naspipe.plan.costs import CostTable
from naspipe.plan.pipeline import RANKINGS, Plan
from naspipe.store.access_order import RECORDED_STEPS
from naspipe.store.files import named_storage
from naspipe.store.labels import described
from naspipe.store.run_directory import RunDirectory, stream_directories, write_last
from naspipe.store.teacher_events import read_teacher_events, tally
from naspipe.wire.endpoints import check_endpoints
from naspipe.wire.ports import LaunchObserver
from naspipe.worker.job import StreamJob, TrainingJob

_THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES",
    "KMP_AFFINITY", "GOMP_CPU_AFFINITY",
)  # fmt: skip
_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
_PASSWORD = re.compile(r"//[^/@\s]*@")


def first_manifest(
    stream: StreamJob, asked: Execution, plan: Plan, streams: int, **beside: Mapping[str, Any]
) -> dict[str, Any]:
    """Of one stream.

    Args:
        stream: as its stages get it.
        asked: how the run was to be carried out.
        plan: how it is.
        streams: all there are in it.
        beside: what is the same for all streams, such as ``provenance``; and ``source``.
    """
    workload = stream.workload
    space, definition = workload.space, workload.definition
    return {
        "format": 1,
        "status": "running",
        "definition": definition.as_dict(),
        "execution": {
            **asked.as_dict(),
            "order": plan.order,
            "window": plan.window,
            "budgets": list(plan.memory.budgets) if plan.memory else [],
            "partitions": sorted(str(each) for each in stream.cuts if each.num_blocks),
            "streams": streams,
        },
        RECORDED_STEPS: [],
        "requested": asked.as_dict(),
        "init_from": dict(workload.begun),
        **described(space, stream.stateless),
        "validation": describe(stream.validation),
        "batches": {"first": first_digests(workload)},
        "passes_per_step": definition.recipe.steps.passes,
        "proof": dict(check_proof(workload)),
        "measured": {},
        **{name: dict(each) for name, each in beside.items()},
    }


def provenance(workloads: Sequence[Workload], hosts: Sequence[str]) -> dict[str, Any]:
    """Of a life that begins now.

    Args:
        workloads: what is trained.
        hosts: the names of all workers' hosts; empty for this one.
    """
    return {
        "hosts": list(dict.fromkeys(hosts)) or [os.uname().nodename],
        "started": time.time(),
        "command": [_PASSWORD.sub("//***@", word) for word in sys.argv],
        "code": code_digest(code_digests(workloads)),
        "git": git_commit(Path.cwd()),
        "system": f"{os.uname().sysname} {os.uname().release} {os.uname().machine}",
        "allocator": allocator(),
        "threads": {name: os.environ[name] for name in _THREADS if name in os.environ},
    }


def git_commit(place: Path) -> str | None:
    """The commit that the repository around a place is at; None without a repository."""
    try:
        root = next(each for each in (place, *place.parents) if (each / ".git").exists())
        folder = root / ".git"
        if folder.is_file():  # of a work tree, or a submodule
            folder = (root / folder.read_text().partition(":")[2].strip()).resolve()
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head[:64]
        name = head.partition(":")[2].strip()
        common = folder / "commondir"
        shared = (folder / common.read_text().strip()).resolve() if common.exists() else folder
        if (shared / name).exists():
            return (shared / name).read_text().strip()[:64]
        packed = (shared / "packed-refs").read_text().splitlines()
        return next(line.split()[0] for line in packed if line.endswith(f" {name}"))
    except (OSError, StopIteration, UnicodeDecodeError):
        return None


def allocator() -> str:
    """What gives out memory in this process."""
    try:
        mapped = Path("/proc/self/maps").read_text("utf-8", "replace")
    except OSError:
        return "unknown"
    found = (name for name in _ALLOCATORS if name in mapped)
    return next(found, " ".join(filter(None, platform.libc_ver())) or "the C library's")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Runs that are defined but not yet started: one, or several that share a pipeline.

    Each of several has a run directory of its own below ``path``, which is that of its solo run.
    """

    workloads: Sequence[Workload]
    execution: Execution
    path: Path
    observer: LaunchObserver
    resumes: bool = False
    """Go on with the runs that ``path`` holds."""
    may_resume: bool = False
    """Go on with them where they are there, and begin them where they are not."""
    sources: Sequence[Mapping[str, Any]] = ()
    """Of each stream, what the command line called its space and data."""
    taps: Sequence[Tap] = ()
    """What blocks of one stream hand to blocks of another."""
    exchanges: Sequence[str] = ()
    """What WRITEs wait for, beside what the recipes ask for."""
    places: Sequence[str] = ()
    """Of each stream, its folder below ``path``, where it is not the usual one."""
    others: OtherHosts | None = None
    """The other hosts, where there are any; this is rank 0 then."""

    @property
    def directories(self) -> list[RunDirectory]:
        """The run directory of each stream."""
        if self.places:
            return [RunDirectory(self.path / place) for place in self.places]
        return stream_directories(self.path, len(self.workloads))

    @property
    def wiring(self) -> Wiring:
        """How the streams are joined."""
        return wiring_of(self.workloads, self.taps, self.exchanges)

    @property
    def policy(self) -> str:
        """The synchronisation policy, one for all streams."""
        return common(self.workloads).policy

    @property
    def drawn_beside(self) -> list[bool]:
        """Of each stream, whether its subnets are drawn beside the training.

        An order with priorities has to know all of them.
        """
        is_ranked = self.execution.pipeline.order in RANKINGS
        return [not is_ranked and is_drawn_beside(each) for each in self.workloads]

    @property
    def traits(self) -> PolicyTraits:
        """What the policy's name stands for."""
        return traits_of(self.policy)

    def run(self) -> None:
        """Check everything, then train and leave complete run directories.

        A run that is resumed and complete already is left as it is.

        Raises:
            ConfigError: when the input cannot be used; nothing has been written then, unless
                only a stage could find it: the manifest then says ``failed``.
            StageFailedError: when a stage raised; the manifest then says ``failed``.
            RunInterruptedError: after SIGINT, SIGTERM or SIGHUP, behind a checkpoint; or before
                the training began, of which nothing is left then.
            StorageError: when a file cannot be written.
        """
        if self.may_resume:
            resumes = self.resumes or goes_on(self.directories)
            return replace(self, resumes=resumes, may_resume=False).run()
        with ExitStack() as early:
            early.enter_context(ended_by_signals("before the training began"))
            early.enter_context(batches_kept())
            self._run(early.close)

    def _run(self, begins: Callable[[], None]) -> None:
        subnets = self._check()
        with named_storage(self.path), ExitStack() as stack:
            generation = 0
            if self.resumes:
                generation = self._claim(stack, subnets)
                if generation < 0:
                    return
            device, note = self.execution.hardware.device, self.observer.on_note
            has_budget = bool(self.execution.memory.budget)
            for said in check_spaces(self.workloads, subnets, self.taps, device, note, has_budget):
                note(said)  # nothing is written yet
            for each in self.workloads:
                check_held_out(plan_validation(each, self.execution), device)
            if not self.resumes:
                records = new_records(self.directories, self.workloads, self.execution)
                stack.enter_context(planning(records))
            costs = planning_costs(self.workloads, self.execution, self.observer.on_note)
            plan = make_plan(
                self.workloads, self.execution, subnets, costs, self.wiring, self.drawn_beside
            )
            if plan.memory and self.others is None:
                check_shared_gpus(device, plan.memory.budgets, self._gpus.memory_bytes)
            full = how_full(self.workloads, costs, self.execution.pipeline.stages)
            notes = [full, plan.chosen, *gain_notes(self.workloads, self.execution, subnets, costs)]
            for said in filter(None, notes):
                self.observer.on_note(said)
            job = self.job(plan, costs)
            beside, count = self._beside(), len(job.streams)
            sources = chain(self.sources, repeat({}))  # of a teacher in no stream there is one, too
            manifests = [
                first_manifest(each, self.execution, plan, count, source=source, **beside)
                for each, source in zip(job.streams, sources, strict=False)
            ]
            stack.callback(close_all)
            for workload in self.workloads:
                for attendant in workload.attendants:
                    stack.enter_context(attendant)
            for stream, manifest, cost in zip(job.streams, manifests, costs, strict=True):
                if not self.resumes or comes_new(stream.directory, stream.workload):
                    begin_record(stream, manifest, cost)
                    if self.resumes:
                        stack.enter_context(Claim(stream.directory.path))
            recording = stack.enter_context(
                recorded(self.directories, self.workloads, self.observer, self.execution.records)
            )
            begins()
            lives = Generations(job, manifests, recording, self.path, generation, self.others)
            self._finish(lives)

    def _finish(self, lives: Generations) -> None:
        """Live to the end, check what was left, and say that it is complete.

        Raises:
            RunInterruptedError: for a signal that came too late to leave anything out. Whoever sent
                it wants no more than this run to be done.
        """
        start_ns = time.monotonic_ns()
        left = lives.run()
        try:
            self._complete(lives, left.measured, (time.monotonic_ns() - start_ns) / 1e9)
        except BaseException as error:
            lives.note("failed", error)
            raise
        if left.late is not None:
            left.late.args = (f"{left.late}: {self.path} is complete",)
            raise left.late

    def _complete(self, lives: Generations, stages: Sequence[Any], seconds: float) -> None:
        job = lives.job
        if lives.verified is not None:
            self.observer.on_note(str(lives.verified))
            if lives.verified.note:
                self.observer.on_note(lives.verified.note)
        measured: dict[str, Any] = {"seconds": seconds, "stages": stages}
        if lives.has_whole_logs:
            measured |= check_and_measure(job)
        elif job.execution.records.logged_steps == 1:
            self.observer.on_note(f"{self.path}: {NOT_CHECKED}")
        wholes = take_whole_backwards(job.streams, stages)
        for stream, manifest, life, whole in zip(
            job.streams, lives.manifests, lives.lives, wholes, strict=True
        ):
            steps = (stream.num_passes - stream.first) / job.steps.passes
            found = {**measured, "steps_per_second": steps / seconds}
            found["nonfinite_steps"] = stream.directory.nonfinite_passes()
            if whole.line:
                found["whole_backwards"] = whole.line
            if whole.number:
                self.observer.on_note(whole.line)
            if taught := tally(read_teacher_events(stream.directory.path)):
                found["teachers"] = taught
            complete = {"status": "complete", "measured": found}
            if lives.verified is not None:
                complete["verified"] = lives.verified.as_dict()
            write_last(stream.directory, {**manifest, **complete, **life})
            if said := last_batch_note(stream.directory, stream.workload, stream.num_passes):
                self.observer.on_note(said)

    def _claim(self, stack: ExitStack, subnets: Sequence[tuple[Subnet, ...]]) -> int:
        """Take the run directories over; returns the generation to go on with, -1 for none."""
        streams = zip(self.directories, self.workloads, subnets, self.drawn_beside, strict=True)
        earlier = take_over(stack, streams)
        pairs = zip(self.directories, self.workloads, strict=True)
        for said in filter(None, starmap(changed_code_note, pairs)):
            self.observer.on_note(said)
        if all(manifest["status"] == "complete" for manifest in earlier):
            self.observer.on_note(f"{self.path} is complete: there is nothing to resume")
            return -1
        return 1 + max(int(each.get("life", {}).get("generation", 0)) for each in earlier)

    def job(self, plan: Plan, costs: Sequence[CostTable | None]) -> TrainingJob:
        """What every stage needs to know; nothing is restored yet."""
        bulk = common(self.workloads).bulk or self.execution.pipeline.stages
        unit = bulk if self.traits.has_bulks else common(self.workloads).steps.passes
        units = [unit * is_drawn for is_drawn in self.drawn_beside]
        given = zip(self.workloads, plan.streams, self.directories, units, strict=True)
        planned = [stream_job(StreamId(number), *each) for number, each in enumerate(given)]
        streams = [
            replace(each, validation=plan_validation(each.workload, self.execution))
            for each in planned
        ]
        return TrainingJob(
            streams=tuple(streams),
            execution=self.execution.changed(order=plan.order, window=plan.window),
            bulk=bulk,
            memory=plan.memory,
            costs=tuple(costs),
            wiring=self.wiring,
            buffered=plan.buffered,
        )

    @property
    def _gpus(self) -> Gpus:
        """Those of this machine, where they matter: looking for them takes seconds."""
        return NO_GPUS if self.execution.hardware.device == "cpu" else find_gpus()

    def _check(self) -> list[tuple[Subnet, ...]]:
        """Everything that can be known to be wrong at once; returns the subnets of each stream."""
        if not self.resumes:
            for directory in self.directories:
                directory.check_new()
        if not self.traits.is_causal and (
            self.resumes or self.execution.cut_every_steps or self.execution.watch.max_restarts
        ):
            raise ConfigError(
                f"policy {self.policy}: expected {causal_policies()} with checkpoints, validation, "
                f"restarts and --resume: what the others train depends on timing"
            )
        check_device(self.execution.hardware.device, len(self._gpus))
        check_fit_for_forking(self.execution.hardware.device)
        check_data_path(self.execution, self._gpus)
        check_limits(self.execution, len(self.workloads))
        if self.execution.records.tensorboard:
            check_tensorboard()
        check_metrics_server(self.execution.records)
        check_taught(self.workloads, self.taps)
        streams = list(zip(self.workloads, self.drawn_beside, strict=True))
        for workload, is_drawn in streams:
            if not is_drawn and (said := why_known(workload, self.execution.pipeline.order)):
                self.observer.on_note(said)
        subnets = [
            check_stream(StreamId(number), workload, self.execution, is_drawn)
            for number, (workload, is_drawn) in enumerate(streams)
        ]
        note = self.observer.on_note
        validating = [check_validation(each, self.execution) for each in self.workloads]
        for said in filter(None, (*validating, *untold_notes(self.workloads))):
            note(said)
        if self.others is None:
            check_endpoints(self.execution)
        return subnets

    def _beside(self) -> dict[str, Mapping[str, Any]]:
        """What manifests say alike of every stream."""
        return {
            "provenance": provenance(
                self.workloads, self.others.hosts.names if self.others else ()
            ),
            "environment": describe_environment(self.execution.hardware.device, self._gpus),
        }

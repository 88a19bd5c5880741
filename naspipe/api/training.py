"""Build and start a :class:`Training`; all runs of naspipe start here.

:func:`start` is called by ``train_together``, ``naspipe train``, ``naspipe distill``, retraining,
blockwise distillation and the exporter. It joins the streams with their teacher, chooses the number
of stages if requested, and runs the training. :meth:`Training.run` checks the input, plans, writes
the records of new runs, trains to the end (:mod:`naspipe.api.attempts`) and completes the
manifests.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, repeat, starmap
from pathlib import Path
from typing import Any

from naspipe.api.attempts import Generations, how_to_go_on
from naspipe.api.chosen_stages import choose_stages
from naspipe.api.finished_log import NOT_CHECKED, check_and_measure, take_whole_backwards
from naspipe.api.planning import gain_notes, make_plan, planning_costs
from naspipe.api.recording import check_metrics_server, check_tensorboard, recorded
from naspipe.api.start_state import (
    asked_resume,
    begin_record,
    check_stream,
    comes_new,
    goes_on,
    planning,
    stream_job,
    take_over,
)
from naspipe.api.validation_plan import check_validation, describe, plan_validation
from naspipe.api.workers import (
    as_assigned,
    assign,
    assigned_costs,
    check_facts,
    check_shared,
    ended_everywhere,
    facts,
    introduced,
    refusal_told,
    started_by,
    told_of_end,
)
from naspipe.checks.data import first_digests, last_batch_note
from naspipe.checks.fingerprint import changed_code_note, code_digest, code_digests, untold_notes
from naspipe.checks.inputs import check_proof, check_taught
from naspipe.checks.machine import check_data_path, check_device, check_limits, check_shared_gpus
from naspipe.checks.space import check_held_out, check_spaces
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.ids import StreamId, Subnet
from naspipe.config.wiring import Tap, Wiring
from naspipe.data.loaders import close_all
from naspipe.distill.distillation import Distillation, MakesTeacher, how_full
from naspipe.distill.joined import join
from naspipe.engine.policies import PolicyTraits, causal_policies, traits_of
from naspipe.inputs.subnet_sources import draw_stream, is_drawn_beside, why_known
from naspipe.jobs.batches_apart import batches_kept
from naspipe.jobs.workload import Workload, common, wiring_of
from naspipe.launch.agent import run_agent
from naspipe.launch.claim import Claim
from naspipe.launch.hosts import Hosts, OtherHosts, Worker
from naspipe.launch.hosts import join as meet
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
from naspipe.worker.job import TrainingJob

Watch = Callable[[Sequence[Workload], int], AbstractContextManager[LaunchObserver]]
"""Makes the observer of a training from its streams and its number of stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Runs that are defined but not yet started: one run, or several that share a pipeline.

    If there are several, each has its own run directory below ``path``, equal to that of its solo
    run.
    """

    workloads: Sequence[Workload]
    execution: Execution
    path: Path
    observer: LaunchObserver
    resumes: bool = False
    """Resume the runs in ``path``."""
    may_resume: bool = False
    """Resume the runs if they exist; otherwise begin them."""
    sources: Sequence[Mapping[str, Any]] = ()
    """The space and data of each stream as given on the command line."""
    taps: Sequence[Tap] = ()
    """Connections from blocks of one stream to blocks of another."""
    exchanges: Sequence[str] = ()
    """Names of the exchanges that weight updates wait for, in addition to those of the recipes."""
    places: Sequence[str] = ()
    """The folder of each stream below ``path``, if not the default."""
    others: OtherHosts | None = None
    """The other hosts, if any; this process is then rank 0."""

    @property
    def directories(self) -> list[RunDirectory]:
        if self.places:
            return [RunDirectory(self.path / place) for place in self.places]
        return stream_directories(self.path, len(self.workloads))

    @property
    def wiring(self) -> Wiring:
        return wiring_of(self.workloads, self.taps, self.exchanges)

    @property
    def drawn_beside(self) -> list[bool]:
        """For each stream, True if its subnets are drawn during training.

        An order with priorities must know all subnets in advance.
        """
        is_ranked = self.execution.pipeline.order in RANKINGS
        return [not is_ranked and is_drawn_beside(each) for each in self.workloads]

    @property
    def traits(self) -> PolicyTraits:
        """Properties of the synchronization policy, which is the same for all streams."""
        return traits_of(common(self.workloads).policy)

    def run(self) -> None:
        """Check the input, train, and leave complete run directories.

        A resumed run that is already complete is left unchanged.

        Raises:
            ConfigError: if the input cannot be used. Nothing has been written, unless only a stage
                could detect the error; in that case the manifest has the status ``failed``.
            StageFailedError: if a stage raised an error; the manifest then has the status
                ``failed``.
            RunInterruptedError: after SIGINT, SIGTERM or SIGHUP, with a checkpoint to resume from.
                If training had not begun, nothing is left of the run.
            StorageError: if a file cannot be written.
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
                note(said)  # nothing has been written yet
            for each in self.workloads:
                check_held_out(plan_validation(each, self.execution), device)
            if not self.resumes:
                stack.enter_context(planning(self.directories, self.workloads, self.execution))
            costs = planning_costs(self.workloads, self.execution, note)
            plan = make_plan(
                self.workloads, self.execution, subnets, costs, self.wiring, self.drawn_beside
            )
            if plan.memory and self.others is None:
                check_shared_gpus(device, plan.memory.budgets, self._gpus.memory_bytes)
            full = how_full(self.workloads, costs, self.execution.pipeline.stages)
            gains = gain_notes(self.workloads, self.execution, subnets, costs)
            for said in filter(None, [full, plan.chosen, *gains]):
                note(said)
            job = self.job(plan, costs)
            manifests = self._first_manifests(job, plan)
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
            attempts = Generations(job, manifests, recording, self.path, generation, self.others)
            start_ns = time.monotonic_ns()
            left = attempts.run()
            try:
                self._complete(attempts, left.measured, (time.monotonic_ns() - start_ns) / 1e9)
            except BaseException as error:
                attempts.note("failed", error)
                raise
            if left.late is not None:  # a signal that arrived too late to interrupt the run
                left.late.args = (f"{left.late}: {self.path} is complete",)
                raise left.late

    def _first_manifests(self, job: TrainingJob, plan: Plan) -> list[dict[str, Any]]:
        """Return the initial manifest of each stream."""
        hosts = self.others.hosts.names if self.others else ()
        origin = provenance(self.workloads, hosts)
        environment = describe_environment(self.execution.hardware.device, self._gpus)
        sources = chain(self.sources, repeat({}))  # a teacher outside the streams has one, too
        return [
            {
                "format": 1,
                "status": "running",
                "definition": stream.workload.definition.as_dict(),
                "execution": {
                    **self.execution.as_dict(),
                    "order": plan.order,
                    "window": plan.window,
                    "budgets": list(plan.memory.budgets) if plan.memory else [],
                    "partitions": sorted(str(each) for each in stream.cuts if each.num_blocks),
                    "streams": len(job.streams),
                },
                RECORDED_STEPS: [],
                "requested": self.execution.as_dict(),
                "init_from": dict(stream.workload.begun),
                **described(stream.workload.space, stream.stateless),
                "validation": describe(stream.validation),
                "batches": {"first": first_digests(stream.workload)},
                "passes_per_step": stream.workload.recipe.steps.passes,
                "proof": dict(check_proof(stream.workload)),
                "measured": {},
                "source": dict(source),
                "provenance": origin,
                "environment": dict(environment),
            }
            for stream, source in zip(job.streams, sources, strict=False)
        ]

    def _complete(self, attempts: Generations, stages: Sequence[Any], seconds: float) -> None:
        """Check the logs, take measurements, and mark each run as complete in its manifest."""
        job, note, verified = attempts.job, self.observer.on_note, attempts.verified
        if verified is not None:
            note(str(verified))
            if verified.note:
                note(verified.note)
        measured: dict[str, Any] = {"seconds": seconds, "stages": stages}
        if attempts.has_whole_logs:
            measured |= check_and_measure(job)
        elif job.execution.records.logged_steps == 1:
            note(f"{self.path}: {NOT_CHECKED}")
        wholes = take_whole_backwards(job.streams, stages)
        for stream, manifest, life, whole in zip(
            job.streams, attempts.manifests, attempts.lives, wholes, strict=True
        ):
            steps = (stream.num_passes - stream.first) / job.steps.passes
            found = {**measured, "steps_per_second": steps / seconds}
            found["nonfinite_steps"] = stream.directory.nonfinite_passes()
            if whole.line:
                found["whole_backwards"] = whole.line
            if whole.number:
                note(whole.line)
            if taught := tally(read_teacher_events(stream.directory.path)):
                found["teachers"] = taught
            complete = {"status": "complete", "measured": found}
            if verified is not None:
                complete["verified"] = verified.as_dict()
            write_last(stream.directory, {**manifest, **complete, **life})
            if said := last_batch_note(stream.directory, stream.workload, stream.num_passes):
                note(said)

    def _claim(self, stack: ExitStack, subnets: Sequence[tuple[Subnet, ...]]) -> int:
        """Take over the run directories; return the next attempt's number, -1 if complete."""
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
        """Return everything that stages need to know; nothing is restored yet."""
        bulk = common(self.workloads).bulk or self.execution.pipeline.stages
        unit = bulk if self.traits.has_bulks else common(self.workloads).steps.passes
        units = [unit * is_drawn for is_drawn in self.drawn_beside]
        given = zip(self.workloads, plan.streams, self.directories, units, strict=True)
        planned = [stream_job(StreamId(number), *each) for number, each in enumerate(given)]
        return TrainingJob(
            streams=tuple(
                replace(each, validation=plan_validation(each.workload, self.execution))
                for each in planned
            ),
            execution=self.execution.changed(order=plan.order, window=plan.window),
            bulk=bulk,
            memory=plan.memory,
            costs=tuple(costs),
            wiring=self.wiring,
            buffered=plan.buffered,
        )

    def run_as(self, worker: Worker, *, has_place: bool) -> None:
        """Act as one of torchrun's workers: rank 0 runs the training, the others run a stage each.

        ``has_place`` is True if the user named the run directory.

        Raises:
            ConfigError: if the hosts do not match, or any other input cannot be used.
            TransportError: if a host is lost.
        """
        if not has_place:
            raise ConfigError(
                "--run-dir: expected a directory on a file system that all hosts share, which a "
                "restart finds again; found none"
            )
        hosts = meet(worker, self.execution)
        if worker.rank == 0:
            starters = {each for each in hosts.started_by if each}
            resumes = self.resumes or bool(started_by(self.path) & starters)
            give = partial(assign, self.path, hosts, self.workloads, self.execution)
            with told_of_end(hosts), ended_everywhere(hosts):
                others = OtherHosts(hosts=hosts, assign=give)
                replace(self, resumes=resumes, others=others).run()
            return
        is_causal = self.traits.is_causal
        said = how_to_go_on(self.sources, self.path) if is_causal else ""
        with ended_everywhere(hosts), introduced(hosts, self.observer.on_note):
            run_agent(
                hosts,
                self.execution,
                partial(self._assigned_job, hosts),
                answers_signals=is_causal,
                how_to_go_on=said,
            )

    def _assigned_job(self, hosts: Hosts, assignment: Mapping[str, Any]) -> TrainingJob:
        """Build the job of rank 0 in this process."""
        rank, path = hosts.worker.rank, Path(assignment["path"])
        own = facts(self.workloads, self.execution)
        check_facts(rank, own, assignment["facts"], hosts.names)
        check_shared(rank, path, assignment["token"])
        training = replace(self, path=path)
        samples = training.drawn_beside
        subnets = [
            draw_stream(StreamId(number), *each)
            for number, each in enumerate(zip(training.workloads, samples, strict=True))
        ]
        costs = assigned_costs(assignment)
        plan = make_plan(
            training.workloads, training.execution, subnets, costs, training.wiring, samples
        )
        return as_assigned(training.job(plan, costs), hosts, assignment)

    @property
    def _gpus(self) -> Gpus:
        """The GPUs of this machine if any may be used; detecting them takes seconds."""
        return NO_GPUS if self.execution.hardware.device == "cpu" else find_gpus()

    def _check(self) -> list[tuple[Subnet, ...]]:
        """Reject all input that can be rejected up front; return the subnets of each stream."""
        execution, note = self.execution, self.observer.on_note
        if not self.resumes:
            for directory in self.directories:
                directory.check_new()
        if not self.traits.is_causal and (
            self.resumes or execution.cut_every_steps or execution.watch.max_restarts
        ):
            raise ConfigError(
                f"policy {common(self.workloads).policy}: expected {causal_policies()} with "
                f"checkpoints, validation, restarts and --resume: what the others train depends on "
                f"timing"
            )
        check_device(execution.hardware.device, len(self._gpus))
        check_fit_for_forking(execution.hardware.device)
        check_data_path(execution, self._gpus)
        check_limits(execution, len(self.workloads))
        if execution.records.tensorboard:
            check_tensorboard()
        check_metrics_server(execution.records)
        check_taught(self.workloads, self.taps)
        streams = list(zip(self.workloads, self.drawn_beside, strict=True))
        for workload, is_drawn in streams:
            if not is_drawn and (said := why_known(workload, execution.pipeline.order)):
                note(said)
        subnets = [
            check_stream(StreamId(number), workload, execution, is_drawn)
            for number, (workload, is_drawn) in enumerate(streams)
        ]
        validating = [check_validation(each, execution) for each in self.workloads]
        for said in filter(None, (*validating, *untold_notes(self.workloads))):
            note(said)
        if self.others is None:
            check_endpoints(execution)
        return subnets


def start(
    streams: Sequence[Workload] | Distillation,
    execution: Execution,
    run_dir: str | Path | None = None,
    *,
    watch: Watch,
    resume: bool | str = False,
    taps: Sequence[Tap] = (),
    exchanges: Sequence[str] = (),
    teacher: MakesTeacher | None = None,
    on_choice: Callable[[str], None] | None = None,
    sources: Sequence[Mapping[str, Any]] = (),
    name: str = "",
    worker: Worker | None = None,
    carry_out: Callable[[Training], None] | None = None,
) -> Training:
    """Define a training and carry it out; every run of naspipe starts here.

    Args:
        streams: the workloads, which this function joins with their teacher; a
            :class:`Distillation` is already joined and has its own taps and places.
        execution: how they are carried out.
        run_dir: by default ``runs/NAME-TIME``.
        watch: makes the observer.
        resume: True, False, or ``"if_exists"``.
        taps: connections from blocks of one stream to blocks of another.
        exchanges: names of the exchanges that weight updates wait for.
        teacher: of the only workload.
        on_choice: if given, the number of stages is chosen here, and this function is called with
            the reason.
        sources: the space and data of each stream as given on the command line.
        name: of the default run directory; by default that of the first space.
        worker: this process as one of torchrun's workers. The ``execution`` already matches it.
        carry_out: called with the training instead of its ``run``.

    Raises:
        ConfigError: if the input cannot be used; in that case nothing has been written.
        StageFailedError: if a layer, the data or the loss raises an error in any stage.
    """
    with refusal_told(worker):
        resuming = asked_resume(resume, run_dir)
        if not isinstance(streams, Distillation):
            streams = join(streams, execution, taps, teacher)
        recompute = execution.pipeline.recompute
        workloads = [replace(each, recompute=recompute) for each in streams.workloads]
        if on_choice is not None and worker is None:
            wiring = wiring_of(workloads, streams.taps, exchanges)
            execution = choose_stages(workloads, execution, wiring, on_choice).execution
    path = default_run_directory(name or workloads[0].space.name)
    with watch(workloads, execution.pipeline.stages) as observer:
        training = Training(
            workloads=workloads,
            execution=execution,
            path=path if run_dir is None else Path(run_dir),
            observer=observer,
            sources=sources,
            taps=streams.taps,
            exchanges=exchanges,
            places=streams.places,
            **resuming,
        )
        if worker is not None:
            training.run_as(worker, has_place=run_dir is not None)
        elif carry_out is not None:
            carry_out(training)
        else:
            training.run()
    return training


def default_run_directory(name: str) -> Path:
    """Return ``runs/NAME-TIME`` below the working directory, with a number if that exists."""
    path = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(each for each in chain([path], others) if not each.exists())


# Provenance of a run


_THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES",
    "KMP_AFFINITY", "GOMP_CPU_AFFINITY",
)  # fmt: skip
_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
_PASSWORD = re.compile(r"//[^/@\s]*@")


def provenance(workloads: Sequence[Workload], hosts: Sequence[str]) -> dict[str, Any]:
    """Return the provenance of an attempt that begins now; empty ``hosts`` stand for this host."""
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
    """Return the commit checked out in the repository around ``place``; None if there is none."""
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
    """Return the name of this process's memory allocator."""
    try:
        mapped = Path("/proc/self/maps").read_text("utf-8", "replace")
    except OSError:
        return "unknown"
    found = (name for name in _ALLOCATORS if name in mapped)
    return next(found, " ".join(filter(None, platform.libc_ver())) or "the C library's")

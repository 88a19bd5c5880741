"""Runs under torchrun: the same command runs once per stage, on one or several hosts.

Rank 0 runs the training. It sends an assignment to the other workers, which define the same
training, check that it is equal, and run one stage of it. A worker that cannot take part notifies
the others, so that none waits for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from naspipe.checks.data import first_digests
from naspipe.checks.fingerprint import code_digests
from naspipe.config.errors import ConfigError, NaspipeError, RunInterruptedError
from naspipe.config.execution import Execution
from naspipe.config.ids import StreamId, WorkerId
from naspipe.jobs.workload import Workload
from naspipe.launch.hosts import (
    Hosts,
    Worker,
    WorkerCard,
    exchange_cards,
    parent_identity,
    tell_end,
)
from naspipe.launch.stopping import end_parent_too
from naspipe.machine.determinism import describe_environment
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.store.checkpoints import cut_name, read_checkpoint
from naspipe.store.compare import differing
from naspipe.store.files import write_json
from naspipe.worker.checkpoints.restored import Restored
from naspipe.worker.job import TrainingJob
from naspipe.worker.placement import device_name

LAUNCH_FILE = ".launch.json"
"""In the run directory: the token of the last attempt on several hosts, and who started it."""


def assign(
    path: Path,
    hosts: Hosts,
    workloads: Sequence[Workload],
    execution: Execution,
    job: TrainingJob,
) -> dict[str, Any]:
    """Return the assignment for the other workers; write the token into the run directory."""
    launch = {"token": hosts.token, "started_by": list(hosts.started_by)}
    write_json(path / LAUNCH_FILE, launch)
    return {
        "path": str(path.absolute()),
        "token": hosts.token,
        "generation": job.generation,
        "first": [stream.first for stream in job.streams],
        "verified_until": job.verified_until,
        "costs": [
            None if table is None else [[*key, *cost] for key, cost in sorted(table.costs.items())]
            for table in job.costs
        ],
        "plan": plan_digest(job),
        "facts": facts(workloads, execution),
    }


def check_shared(rank: int, path: Path, token: str) -> None:
    """Reject a run directory that is not the one of rank 0's host."""
    if _launch(path).get("token", "nothing") != token:
        raise ConfigError(
            f"rank {rank}: expected the run directory {path} of rank 0's host, found another one "
            f"or none here; choose a --run-dir on a file system that all hosts share"
        )


def assigned_costs(assignment: Mapping[str, Any]) -> tuple[CostTable | None, ...]:
    """Return the costs of each stream that rank 0 planned with."""
    return tuple(
        None
        if rows is None
        else CostTable({(block, layer): LayerCost(*cost) for block, layer, *cost in rows})
        for rows in assignment["costs"]
    )


def as_assigned(job: TrainingJob, hosts: Hosts, assignment: Mapping[str, Any]) -> TrainingJob:
    """Return a job built in this process, at the checkpoints from which rank 0 resumes.

    Raises:
        ConfigError: if it differs from the job of rank 0.
        LogError: if this host cannot read the checkpoint to resume from.
    """
    worker = hosts.worker
    if (found := plan_digest(job)) != assignment["plan"]:
        raise ConfigError(
            f"rank {worker.rank}: expected the plan of rank 0 ({assignment['plan']}), found "
            f"{found}: is something of the space not the same on every host?"
        )
    streams = []
    for number, (stream, first, stages) in enumerate(
        zip(job.streams, assignment["first"], job.participants, strict=True)
    ):
        if first and not stream.workload.is_written:
            stream = replace(stream, begins=first)
        elif first:
            checkpoint = read_checkpoint(stream.directory.checkpoints.path / cut_name(first))
            restored = Restored(stream.workload.space, StreamId(number), checkpoint)
            stream = replace(stream, restored=restored, kept=restored.layers(stages))
        streams.append(stream)
    device = device_name(job.execution.hardware.device, WorkerId(worker.local_rank))
    return replace(
        job,
        streams=tuple(streams),
        generation=assignment["generation"],
        verified_until=assignment["verified_until"],
        execution=job.execution.changed(device=device),
    )


def facts(workloads: Sequence[Workload], execution: Execution) -> dict[str, Any]:
    """Return everything that must be equal on all hosts, in the order of comparison."""
    environment = describe_environment()
    hardware = environment["hardware"]
    definitions = [workload.definition.as_dict() for workload in workloads]
    found = {
        "software": environment["software"],
        "code": code_digests(workloads),
        "processor": {key: hardware[key] for key in hardware if key != "cores"},
        "definition": dict(enumerate(definitions)) if definitions[1:] else definitions[0],
        "execution": execution.as_dict(),
        "first batch": dict(enumerate(first_digests(each) for each in workloads)),
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def check_facts(
    rank: int, own: Mapping[str, Any], expected: Mapping[str, Any], names: Sequence[str]
) -> None:
    """Compare the :func:`facts` of this worker with those of rank 0.

    ``names`` are the hosts of all ranks.

    Raises:
        ConfigError: with the first key that differs and both values; for code, with the files.
    """
    whose = f"rank {rank} on {names[rank]} and rank 0 on {names[0]}"
    for part, value in expected.items():
        differences = list(differing(value, own[part]))
        if not differences:
            continue
        key, there, here = differences[0]
        what = f"{part}.{key}" if key else part
        said = f"{what} is {there} on rank 0, {here} on rank {rank}"
        if part == "code":
            files = [name for name, *_ in differences]
            more = f" and {len(files) - 5} more" if len(files) > 5 else ""
            said = f"the code differs in {', '.join(files[:5])}{more}"
        raise ConfigError(
            f"{whose} differ: {said}; every host needs the same command, code, software and kind "
            f"of processor"
        )


def _launch(path: Path) -> dict[str, Any]:
    """Return the record of the last launch on several hosts; empty if missing or damaged."""
    try:
        found = json.loads((path / LAUNCH_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def started_by(path: Path) -> set[str]:
    """Return the processes that started the last attempt of a run; empty if unknown."""
    found = _launch(path).get("started_by")
    return {str(each) for each in found if each} if isinstance(found, list) else set()


def plan_digest(job: TrainingJob) -> str:
    """Return a digest of everything that the stages must agree on."""
    digest = hashlib.blake2b(digest_size=8)
    for stream in job.streams:
        known = stream.planned, sorted(stream.cuts), sorted(stream.stateless)
        digest.update(repr(known).encode())
    budgets = job.memory.budgets if job.memory else ()
    way = job.execution.pipeline
    digest.update(repr((way.order, way.window, budgets, job.bulk)).encode())
    return digest.hexdigest()


def execution_of(worker: Worker, execution: Execution, asked_stages: int | None) -> Execution:
    """Return the execution of a run under torchrun: one stage of a group per worker, over tcp.

    ``asked_stages`` is None unless the command line has ``--stages``.

    Raises:
        ConfigError: for settings that torchrun determines, or that do not work across hosts.
    """
    groups = execution.pipeline.groups
    stages, left = divmod(worker.world_size, groups)
    if left or not stages:
        raise ConfigError(
            f"--groups {groups}: expected as many of torchrun's workers in each group, found "
            f"{worker.world_size} workers; start a multiple of {groups}, or choose other groups"
        )
    if asked_stages not in (None, stages):
        raise ConfigError(
            f"--stages {asked_stages}: expected one stage for each of torchrun's workers, found "
            f"{worker.world_size} workers for {groups} groups; leave it out, or start "
            f"{asked_stages * groups} of them"
        )
    if execution.watch.max_restarts:
        raise ConfigError(
            f"--max-restarts {execution.watch.max_restarts}: expected torchrun's own (torchrun "
            f"--max-restarts {execution.watch.max_restarts} ...), which starts all hosts anew"
        )
    if execution.wire.data_path not in ("shm", "zmq"):
        raise ConfigError(
            f"data_path={execution.wire.data_path}: expected zmq under torchrun; use --set "
            f"data_path=zmq"
        )
    if execution.teaching.teachers:
        raise ConfigError(
            f"--teachers {execution.teaching.teachers}: expected none under torchrun, as hosts "
            f"share no directory; start them with naspipe teach --registry redis://HOST, and name "
            f"it by --set teacher_registry=redis://HOST"
        )
    if execution.teaching.registry.startswith("tcp://"):
        raise ConfigError(
            "teacher_registry=tcp://...: expected redis://HOST under torchrun, where no host is "
            "the run's own"
        )
    if execution.wire.link_bandwidth or execution.wire.link_latency:
        raise ConfigError(
            "link_bandwidth, link_latency: expected none under torchrun, as hosts have no common "
            "clock; emulate a link with --stages and --groups on one machine"
        )
    return execution.changed(stages=stages, transport="tcp")


@contextmanager
def introduced(hosts: Hosts, say: Callable[[str], None]) -> Iterator[None]:
    """On a host that shows no progress, report the start and the end with one line each."""
    worker, first = hosts.worker, hosts.places[0].on(0)
    who = f"rank {worker.rank} of {worker.world_size} on {hosts.names[worker.rank]}"
    is_one_of_its_host = worker.local_rank == 0
    if is_one_of_its_host:
        say(f"{who} works for {first}; progress is shown there")
    yield
    if is_one_of_its_host:
        say(f"{who} is done: the run is complete")


@contextmanager
def told_of_end(hosts: Hosts) -> Iterator[None]:
    """Notify the other workers of the end of the run, whether it succeeds or fails."""
    problem, signal_number = "rank 0 failed", 0
    try:
        yield
        problem = ""
    except NaspipeError as error:
        problem = str(error).partition("\n")[0]
        if isinstance(error, RunInterruptedError):
            signal_number = error.signal_number
        raise
    finally:
        tell_end(hosts, problem, signal_number)


@contextmanager
def ended_everywhere(hosts: Hosts) -> Iterator[None]:
    """Make a signal to one host end the torchrun of every host.

    torchrun restarts workers that failed, waits ten minutes for a lost host, and takes no exit
    status as a request to stop, so it must receive the signal as well. One of its workers forwards
    the signal, unless torchrun sent it.
    """
    try:
        yield
    except RunInterruptedError as error:
        worker = hosts.worker
        is_there = parent_identity() == hosts.started_by[worker.rank]
        if error.from_elsewhere and worker.is_torchruns and worker.local_rank == 0 and is_there:
            end_parent_too()
        raise


@contextmanager
def refusal_told(worker: Worker | None) -> Iterator[None]:
    """Notify the other workers of a ConfigError, so that none waits for this one.

    Raises:
        ConfigError: with this problem, and those of other workers.
    """
    try:
        yield
    except ConfigError as error:
        if worker is not None:
            card = WorkerCard(address="", public_key="", started_by="", problem=str(error))
            exchange_cards(worker, card, Execution().watch.timeout_seconds)
        raise

"""What rank 0 tells the other hosts of a job, and the same job made from it there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.config.ids import StageId, StreamId, WorkerId
from naspipe.frontend.checks.code_digests import code_digests
from naspipe.frontend.checks.data_checks import first_digests
from naspipe.frontend.given.drawn_source import draw_stream
from naspipe.frontend.given.run_plan import make_plan
from naspipe.frontend.training.training import Training
from naspipe.planning.cost import CostTable, LayerCost
from naspipe.runtime.checkpoints.restored import Restored
from naspipe.runtime.devices.environment import describe_environment
from naspipe.runtime.jobs.job import StreamJob, TrainingJob
from naspipe.runtime.memory.placement import device_name
from naspipe.runtime.processes.hosts import Hosts
from naspipe.trace.reading.definitions import differing
from naspipe.trace.snapshots.checkpoints import cut_name
from naspipe.trace.snapshots.snapshot import read_checkpoint
from naspipe.trace.storage.whole_files import write_json

LAUNCH_FILE = ".launch.json"
"""In the run directory: the token of the last life on several hosts, and who started it."""


def assign(training: Training, hosts: Hosts, job: TrainingJob) -> dict[str, Any]:
    """What the other workers need to make the job; leaves the token in the run directory."""
    launch = {"token": hosts.token, "started_by": list(hosts.started_by)}
    write_json(training.path / LAUNCH_FILE, launch)
    return {
        "path": str(training.path.absolute()),
        "token": hosts.token,
        "generation": job.generation,
        "first": [stream.first for stream in job.streams],
        "verified_until": job.verified_until,
        "costs": [_rows(table) for table in job.costs],
        "plan": plan_digest(job),
        "facts": facts(training),
    }


def assigned_job(training: Training, hosts: Hosts, assignment: Mapping[str, Any]) -> TrainingJob:
    """The job of rank 0, made here.

    Raises:
        ConfigError: when this host has another run, other code or another run directory.
        LogError: when the checkpoint to go on from cannot be read here.
    """
    rank = hosts.worker.rank
    check_facts(rank, facts(training), assignment["facts"], hosts.names)
    path = Path(assignment["path"])
    _check_shared(rank, path, assignment["token"])
    training = replace(training, path=path)
    samples = training.drawn_beside
    subnets = [
        draw_stream(StreamId(number), *each)
        for number, each in enumerate(zip(training.workloads, samples, strict=True))
    ]
    costs = tuple(map(_table, assignment["costs"]))
    plan = make_plan(
        training.workloads, training.execution, subnets, costs, training.wiring, samples
    )
    job = training.job(plan, costs)
    if (found := plan_digest(job)) != assignment["plan"]:
        raise ConfigError(
            f"rank {rank}: expected the plan of rank 0 ({assignment['plan']}), found {found}: "
            f"is something of the space not the same on every host?"
        )
    streams = [
        _restored(StreamId(number), *each)
        for number, each in enumerate(
            zip(job.streams, assignment["first"], job.participants, strict=True)
        )
    ]
    device = device_name(job.execution.hardware.device, WorkerId(hosts.worker.local_rank))
    return replace(
        job,
        streams=tuple(streams),
        generation=assignment["generation"],
        verified_until=assignment["verified_until"],
        execution=job.execution.changed(device=device),
    )


def facts(training: Training) -> dict[str, Any]:
    """What must be the same on every host, in the order in which it is compared."""
    environment = describe_environment()
    hardware = environment["hardware"]
    definitions = [workload.definition.as_dict() for workload in training.workloads]
    found = {
        "software": environment["software"],
        "code": code_digests(training.workloads),
        "processor": {key: hardware[key] for key in hardware if key != "cores"},
        "definition": _numbered(definitions) if len(definitions) > 1 else definitions[0],
        "execution": training.execution.as_dict(),
        "first batch": _numbered([first_digests(each) for each in training.workloads]),
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def _numbered(found: Sequence[Any]) -> dict[str, Any]:
    return {str(number): each for number, each in enumerate(found)}


def check_facts(
    rank: int, own: Mapping[str, Any], expected: Mapping[str, Any], names: Sequence[str]
) -> None:
    """What must be the same on this host is what it is on rank 0's.

    Args:
        rank: of this worker.
        own: see :func:`facts`.
        expected: those of rank 0.
        names: of the hosts of all ranks.

    Raises:
        ConfigError: naming the key that differs, with both values; of code the files.
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


def _check_shared(rank: int, path: Path, token: str) -> None:
    try:
        found = json.loads((path / LAUNCH_FILE).read_bytes())["token"]
    except (OSError, ValueError, KeyError, TypeError):
        found = "nothing"
    if found != token:
        raise ConfigError(
            f"rank {rank}: expected the run directory {path} of rank 0's host, found another one "
            f"or none here; choose a --run-dir on a file system that all hosts share"
        )


def started_by(path: Path) -> set[str]:
    """The processes that started the last life of a run; empty where that is not known."""
    try:
        launch = json.loads((path / LAUNCH_FILE).read_bytes())
        return {str(each) for each in launch["started_by"] if each}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _restored(
    number: StreamId, stream: StreamJob, first: int, stages: Collection[StageId]
) -> StreamJob:
    if not first:
        return stream
    if not stream.workload.is_written:
        return replace(stream, begins=first)
    folder = stream.directory.checkpoints.path
    restored = Restored(stream.workload.space, number, read_checkpoint(folder / cut_name(first)))
    return replace(stream, restored=restored, kept=restored.layers(stages))


def plan_digest(job: TrainingJob) -> str:
    """Of everything that stages must agree about."""
    digest = hashlib.blake2b(digest_size=8)
    for stream in job.streams:
        known = stream.planned, sorted(stream.cuts), sorted(stream.stateless)
        digest.update(repr(known).encode())
    budgets = job.memory.budgets if job.memory else ()
    digest.update(
        repr(
            (job.execution.pipeline.order, job.execution.pipeline.window, budgets, job.bulk)
        ).encode()
    )
    return digest.hexdigest()


def _rows(table: CostTable | None) -> list[list[int]] | None:
    if table is None:
        return None
    return [[*key, *cost] for key, cost in sorted(table.costs.items())]


def _table(rows: Sequence[Sequence[int]] | None) -> CostTable | None:
    if rows is None:
        return None
    return CostTable({(block, layer): LayerCost(*cost) for block, layer, *cost in rows})

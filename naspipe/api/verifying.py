"""Choose the steps of a run that are verified, and make the plain loop that trains them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from naspipe.config.rules import steps_behind
from naspipe.inputs.subnet_sources import draw_passes
from naspipe.jobs.workload import Workload
from naspipe.verification.comparison import Comparison
from naspipe.verification.plain_loop import PlainLoop, states_of, with_teachers
from naspipe.verification.records import NotVerifiable, StepRecord
from naspipe.verification.verifier import Proposed, Verifier, limit_gpu_memory
from naspipe.worker.job import StreamJob, TrainingJob

Choices = Sequence[int] | None


def verifier_of(job: TrainingJob) -> Verifier | None:
    """Return the verifier of an attempt of a run, or None if verification is off.

    It compares the first steps of the attempt, after the checkpoint that it resumes from, if any.
    Enter it before any stage is forked.
    """
    firsts = {each.first // job.steps.passes for each in job.streams}
    first, asked = min(firsts), job.execution.verification
    longest = max(each.workload.definition.steps for each in job.streams)
    steps = asked.steps(longest_lag(job.workloads), longest - first)
    if not steps:
        return None
    names = [each.directory.path.name if len(job.streams) > 1 else "" for each in job.streams]
    comparison = Comparison(steps, job.steps.passes, names, first)

    def records(proposed: Proposed) -> Iterator[Mapping[str, Any]]:
        if len(firsts) > 1:
            raise NotVerifiable("because its streams go on from different steps")
        return _records(job, first, steps, proposed)

    patience = job.execution.watch.timeout_seconds if asked.waits else None
    return Verifier(comparison, records, job.threads, patience)


def longest_lag(workloads: Sequence[Workload]) -> int:
    """Return the largest number of steps that a layer of the runs lags behind."""
    lags = (steps_behind(rule) or 0 for each in workloads for rule in each.space.rules)
    return max(lags, default=0)


def _records(
    job: TrainingJob, first: int, steps: int, proposed: Proposed
) -> Iterator[Mapping[str, Any]]:
    """Train the plain loop, in the process of the verifier."""
    passes, count = job.steps.passes, len(job.streams)
    workloads, taps = with_teachers(job.workloads, job.wiring.taps)
    subnets = [
        _choices(stream, first * passes, steps * passes, proposed(number))
        for number, stream in enumerate(job.streams)
    ]
    for teacher in workloads[count:]:
        subnets.append(islice(draw_passes(teacher), first * passes, None))
    device = job.execution.hardware.device.partition(":")[0]
    limit_gpu_memory(device)
    loop = PlainLoop(workloads, taps, subnets, device)
    if first:
        states = [
            states_of(each.restored.checkpoint, passes) if each.restored else {}
            for each in job.streams
        ]
        loop.resume(first, [*states, *({} for _ in workloads[count:])])
    for _ in range(steps):
        yield _as_dict(loop.step(), count)


def _choices(
    stream: StreamJob, first: int, count: int, proposed: Iterator[Sequence[int]]
) -> Iterator[Choices]:
    """Return the choices of ``count`` passes of a stream, from a sequence ID on."""
    space = stream.workload.space
    if stream.source is not None:
        return (space.choices(chain) if chain else None for chain in proposed)
    planned = islice(stream.planned, first, first + count)
    return (space.choices(each.subnet.chain) if each.subnet.chain else None for each in planned)


def _as_dict(record: StepRecord, count: int) -> Mapping[str, Any]:
    streams = [
        {
            "losses": each.losses,
            "layers": {label: dict(digests) for label, digests in each.layers.items()},
            "hints": each.hints,
            "remembered": each.remembered,
        }
        for each in record.streams[:count]
    ]
    return {"step": record.step, "streams": streams}

"""How the first steps of a run are verified: which, by which plain loop, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from naspipe.core.rules import steps_behind
from naspipe.core.space import Space
from naspipe.core.subnet import Subnet
from naspipe.runtime.jobs.job import StreamJob, TrainingJob
from naspipe.verification.comparison import Comparison
from naspipe.verification.plain_loop import PlainLoop
from naspipe.verification.records import StepRecord
from naspipe.verification.verifier import Verified, Verifier

GOES_ON = Verified(0, "because the run goes on from a checkpoint")
"""Only the first steps of a run are compared."""


def steps_to_verify(job: TrainingJob) -> int:
    """How many steps of a run are compared with its plain loop."""
    lags = (steps_behind(rule) or 0 for each in job.workloads for rule in each.space.rules)
    longest = min(each.workload.definition.steps for each in job.streams)
    return job.execution.verification.steps(max(lags, default=0), longest)


def verifier_of(job: TrainingJob, steps: int) -> Verifier:
    """The verifier of a run that begins; it is entered before any stage is forked.

    Args:
        job: of the run.
        steps: how many of the first ones are compared.
    """
    names = [each.directory.path.name if len(job.streams) > 1 else "" for each in job.streams]
    comparison = Comparison(steps, job.steps.passes, names)
    return Verifier(comparison, lambda: _records(job, steps), job.threads)


def _records(job: TrainingJob, steps: int) -> Iterator[Mapping[str, Any]]:
    """Train the plain loop, in the process of the verifier."""
    subnets = [_choices(each, steps * job.steps.passes) for each in job.streams]
    device = job.execution.hardware.device.partition(":")[0]
    loop = PlainLoop(job.workloads, job.wiring.taps, subnets, device)
    for _ in range(steps):
        yield _as_dict(loop.step())


def _choices(stream: StreamJob, passes: int) -> list[Sequence[int]]:
    """What the sampler chose for the first passes of a stream."""
    space = stream.workload.space
    return [_choices_of(space, each) for each in islice(stream.so_far, passes)]


def _choices_of(space: Space, subnet: Subnet) -> Sequence[int]:
    return space.choices(subnet.chain)


def _as_dict(record: StepRecord) -> Mapping[str, Any]:
    streams = [
        {"losses": each.losses, "layers": {k: dict(v) for k, v in each.layers.items()}}
        for each in record.streams
    ]
    return {"step": record.step, "streams": streams}

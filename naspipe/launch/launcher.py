"""Starts the stages of a run on one machine, watches them, and ends them together.

Stages are forked, so spaces, data and losses may be any Python objects and nothing is ever
pickled. The launcher computes nothing with torch itself before it forks.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from naspipe.config.errors import (
    NaspipeError,
    ObserverError,
    RunInterruptedError,
    StageFailedError,
    TransportError,
)
from naspipe.launch.claim import Publisher, merge_parts
from naspipe.launch.hosts import OtherHosts
from naspipe.launch.stage_pool import Elsewhere, LauncherSide, Mailboxes, run_stages
from naspipe.launch.stopping import Stop, answered_signals
from naspipe.launch.supervisor import Collector, FirstSteps, GrowingStreams, NotCompared
from naspipe.launch.validation import ValidationLauncher
from naspipe.machine.forking import may_compute_here
from naspipe.store.checkpoints import FINAL
from naspipe.store.losses import SectionLosses
from naspipe.wire.endpoints import make_endpoints, private_directory
from naspipe.wire.ports import RunObserver
from naspipe.wire.transport import Wakeup
from naspipe.worker.job import TrainingJob
from naspipe.worker.stage_main import run_alone
from naspipe.worker.stage_process import StageRun


@dataclass(frozen=True, slots=True)
class Launched:
    """What a run to its final checkpoint leaves beside that."""

    measured: list[dict[str, Any]]
    """Of each stage: bytes handed over and copied."""
    late: NaspipeError | None
    """Whoever asked it to end when there was nothing more to leave out, or an observer that failed
    then; not raised yet."""


def launch(
    job: TrainingJob,
    observer: RunObserver,
    others: OtherHosts | None = None,
    first_steps: FirstSteps | None = None,
) -> Launched:
    """Carry a run out, to its final checkpoint; on several hosts, with stage 0 on this one.

    Args:
        job: what is trained, and how.
        observer: told as the run goes.
        others: the other hosts, where there are any.
        first_steps: compares them with a plain loop. No checkpoint is published before it has.

    Raises:
        VerificationError: if one of the first steps differs from the plain loop.
        StageFailedError: with the first cause, once every stage has ended.
        ConfigError: when a stage finds that the input cannot be used, or a port is in use.
        StorageError: when a file cannot be written.
        RunInterruptedError: after SIGINT, SIGTERM or SIGHUP, behind a checkpoint.
        ObserverError: if the observer raised an error; the run ended with a checkpoint.
    """
    first_steps = first_steps or NotCompared()
    execution, num_stages = job.execution, job.execution.workers
    folders = [stream.directory.checkpoints for stream in job.streams]
    mailboxes = Mailboxes()
    joined = job.wiring.joined(len(job.streams))
    stop = Stop(num_stages, mailboxes.send, joined, observer.on_note)
    with ExitStack() as stack:
        wakeup = stack.enter_context(Wakeup())
        losses = [
            stack.enter_context(
                SectionLosses(stream.loss_files, stream.first, stream.workload.is_trained)
            )
            for stream in job.streams
        ]
        validating = stack.enter_context(ValidationLauncher(job, observer))
        publisher = Publisher(
            job.participants, job.generation, folders, losses, execution.checkpoints.keep,
            validating, job.going_on_together, first_steps.may_publish,
        )  # fmt: skip
        growing = stack.enter_context(GrowingStreams(job, mailboxes.send, first_steps))
        collect = validating.collect
        collector = Collector(
            num_stages, losses, observer, publisher, stop, growing, collect, first_steps,
            job.is_causal,
        )  # fmt: skip
        if job.is_causal:
            stack.enter_context(answered_signals(lambda number: _ask(stop, wakeup, number)))
        side = LauncherSide(
            collector=collector,
            start=growing.start,
            stop=stop,
            wakeup=wakeup,
            mailboxes=mailboxes,
        )
        try:
            _run(job, side, others, stack)
        except (StageFailedError, TransportError):  # resumes from a checkpoint that is still held
            first_steps.wait()
            publisher.publish_held()
            raise
        first_steps.wait()
        publisher.publish_held()
        results = [collector.results[stage] for stage in sorted(collector.results)]
        if not all(result["streams"] for result in results):  # some may have been through already
            raise _interruption(job, stop, publisher, collector.observer_error)
        for number, stream in enumerate(job.streams):
            parts = [result["streams"][number] for result in results]
            manifest = merge_parts(stream.num_passes, parts)
            folders[number].publish(FINAL, job.generation, manifest)
        if not validating.finish(lambda: bool(stop.signal_number), wakeup):
            raise _interruption(job, stop, publisher, collector.observer_error)
    late: NaspipeError | None = collector.observer_error
    if late is None and stop.signal_number:
        late = _asked(stop, "behind its last subnet")
    return Launched([result["measured"] for result in results], late)


def _run(job: TrainingJob, side: LauncherSide, others: OtherHosts | None, stack: ExitStack) -> None:
    """Have the stages work to their end: a single one in this process, where that does no harm."""
    execution = job.execution
    if execution.workers == 1 and may_compute_here(execution.hardware.device):
        side.start()
        run_alone(job, side.collector, side.mailboxes.local)
        return
    directory = stack.enter_context(private_directory())
    if others is None:
        run_stages(job, StageRun, make_endpoints(execution, directory), side)
        return
    elsewhere = Elsewhere(hosts=others.hosts, assigned=others.assign(job))
    run_stages(job, StageRun, others.hosts.endpoints, side, elsewhere)


def _ask(stop: Stop, wakeup: Wakeup, signal_number: int) -> None:
    stop.request(signal_number)
    wakeup.set()


def _interruption(
    job: TrainingJob, stop: Stop, publisher: Publisher, observer_error: ObserverError | None
) -> NaspipeError:
    """What to say of a run that was asked to end and has done so."""
    cuts = [
        publisher.newest.get(number, each.first)
        for number, each in enumerate(job.streams)
        if each.workload.is_trained
    ]
    where = f"with a checkpoint at subnet {' and '.join(map(str, cuts))}"
    if observer_error is not None:
        observer_error.args = (f"{observer_error}; the run ended {where}",)
        return observer_error
    return _asked(stop, where)


def _asked(stop: Stop, where: str) -> RunInterruptedError:
    return RunInterruptedError(
        stop.signal_number,
        f"interrupted by {signal.Signals(stop.signal_number).name}, {where}",
        from_elsewhere=stop.from_elsewhere,
    )

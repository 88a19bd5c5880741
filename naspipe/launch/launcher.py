"""Starts the stages of a run, supervises them, and ends them together.

Stages are forked, so that spaces, data and losses may be arbitrary Python objects and nothing is
ever pickled. The launcher does not compute with torch before it forks.
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
from naspipe.launch.stage_pool import LauncherSide, Mailboxes, run_stages
from naspipe.launch.stopping import Stop, answered_signals
from naspipe.launch.supervisor import Collector, FirstSteps, GrowingStreams
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
    """The results of a run in addition to its files."""

    measured: list[dict[str, Any]]
    """Bytes that each stage has handed over and copied."""
    late: NaspipeError | None
    """A request to end, or an error of an observer, that arrived too late to shorten the run and
    has not been raised yet."""


def launch(
    job: TrainingJob,
    observer: RunObserver,
    others: OtherHosts | None = None,
    first_steps: FirstSteps | None = None,
) -> Launched:
    """Carry out a run until its final checkpoint; on several hosts, stage 0 is on this host.

    Args:
        job: the training job.
        observer: the observer of the run.
        others: the other hosts, if any.
        first_steps: compares the first steps with a plain loop; checkpoints of these steps are
            published only afterwards.

    Raises:
        VerificationError: if one of the first steps differs from the plain loop.
        StageFailedError: with the first cause, once every stage has ended.
        ConfigError: if a stage cannot use the input, or a port is in use.
        StorageError: if a file cannot be written.
        RunInterruptedError: after SIGINT, SIGTERM or SIGHUP, with a checkpoint.
        ObserverError: if the observer raised an error; the run ended with a checkpoint.
    """
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
            job.participants,
            job.generation,
            folders,
            losses,
            execution.checkpoints.keep,
            validating,
            job.going_on_together,
            first_steps.may_publish if first_steps else lambda cut: True,
        )
        growing = stack.enter_context(GrowingStreams(job, mailboxes.send, first_steps))
        collector = Collector(
            num_stages,
            losses,
            observer,
            publisher,
            stop,
            growing,
            validating.collect,
            first_steps,
            job.is_causal,
        )
        if job.is_causal:

            def answer(signal_number: int) -> None:
                stop.request(signal_number)
                wakeup.set()

            stack.enter_context(answered_signals(answer))
        side = LauncherSide(
            collector=collector,
            start=growing.start,
            stop=stop,
            wakeup=wakeup,
            mailboxes=mailboxes,
        )

        def publish_all() -> None:
            if first_steps:
                first_steps.wait()
            publisher.publish_held()

        try:
            if execution.workers == 1 and may_compute_here(execution.hardware.device):
                growing.start()
                run_alone(job, collector, mailboxes.local)
            else:
                directory = stack.enter_context(private_directory())
                hosts = others.hosts if others else None
                endpoints = hosts.endpoints if hosts else make_endpoints(execution, directory)
                assigned = others.assign(job) if others else {}
                run_stages(job, StageRun, endpoints, side, hosts, assigned)
        except (StageFailedError, TransportError):  # a resume starts from the last checkpoint
            publish_all()
            raise
        publish_all()
        results = [collector.results[stage] for stage in sorted(collector.results)]
        if not all(result["streams"] for result in results):  # some stages may have finished
            raise _interruption(job, stop, publisher, collector.observer_error)
        for number, stream in enumerate(job.streams):
            parts = [result["streams"][number] for result in results]
            manifest = merge_parts(stream.num_passes, parts)
            folders[number].publish(FINAL, job.generation, manifest)
        if not validating.finish(lambda: bool(stop.signal_number), wakeup):
            raise _interruption(job, stop, publisher, collector.observer_error)
    late: NaspipeError | None = collector.observer_error
    if late is None and stop.signal_number:
        late = _interrupted(stop, "after its last subnet")
    return Launched([result["measured"] for result in results], late)


def _interruption(
    job: TrainingJob, stop: Stop, publisher: Publisher, observer_error: ObserverError | None
) -> NaspipeError:
    """Return the error of a run that ended early as requested."""
    cuts = [
        publisher.newest.get(number, each.first)
        for number, each in enumerate(job.streams)
        if each.workload.is_trained
    ]
    where = f"with a checkpoint at subnet {' and '.join(map(str, cuts))}"
    if observer_error is not None:
        observer_error.args = (f"{observer_error}; the run ended {where}",)
        return observer_error
    return _interrupted(stop, where)


def _interrupted(stop: Stop, where: str) -> RunInterruptedError:
    return RunInterruptedError(
        stop.signal_number,
        f"interrupted by {signal.Signals(stop.signal_number).name}, {where}",
        from_elsewhere=stop.from_elsewhere,
    )

"""The launcher's supervision of stages through their reports, heartbeats and exits."""

from __future__ import annotations

import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn, Protocol

import zmq

from naspipe.config.errors import (
    ConfigError,
    NotFiniteError,
    ObserverError,
    StageFailedError,
    StorageError,
    VerificationError,
)
from naspipe.config.ids import StreamId, Subnet
from naspipe.engine.events import Planned
from naspipe.launch.claim import Publisher
from naspipe.launch.liveness import Liveness
from naspipe.launch.stopping import Stop
from naspipe.machine.forking import obituary
from naspipe.store.losses import SectionLosses, read_beside, read_losses
from naspipe.wire.messages import SubnetsMessage
from naspipe.wire.ports import RunObserver
from naspipe.wire.reports import read_report
from naspipe.wire.transport import Wakeup
from naspipe.worker.job import StreamJob, TrainingJob


class FirstSteps(Protocol):
    """Compares the reports of stages with a plain loop, as ``Verifier`` of ``verification`` does.

    The last three methods raise a VerificationError if a value differs.
    """

    def may_publish(self, cut: int) -> bool:
        """Return True if everything before the sequence ID ``cut`` has been compared."""
        ...

    def take_subnets(self, stream: int, first: int, subnets: Sequence[Subnet]) -> None:
        """Add subnets to a stream; their sequence IDs begin with ``first``."""
        ...

    def take_loss(self, stream: int, sequence_id: int, bits: str) -> None: ...

    def take_layer(
        self, stream: int, sequence_id: int, label: str, digests: Mapping[str, str]
    ) -> None:
        """Compare a layer that a stage has written."""
        ...

    def wait(self) -> None:
        """Wait until the comparison has finished, within a time limit."""
        ...


def _scores(stream: StreamJob) -> Iterator[float]:
    """Yield the scores of the subnets that are done.

    The losses are read only if the source asks for scores: a sampler does not, and of a stream that
    is not trained there are none.
    """
    for loss in read_losses(stream.directory.losses, stream.first) if stream.first else ():
        yield -loss.value


class GrowingStreams:
    """Passes losses to the sources of streams, and their subnets to the stages; a context manager.

    ``first_steps`` receives each subnet, for the plain loop that trains the first of them.
    """

    def __init__(
        self,
        job: TrainingJob,
        send: Callable[[int, SubnetsMessage], None],
        first_steps: FirstSteps | None,
    ) -> None:
        self._job = job
        self._send = send
        self._first_steps = first_steps
        self._fed = [
            [n for n, stream in enumerate(job.streams) if stream.source and self._feeds(number, n)]
            for number in range(len(job.streams))
        ]

    def _feeds(self, one: int, other: int) -> bool:
        """Return True if the source of stream ``other`` receives the losses of stream ``one``.

        A stream that is not trained has no losses, and receives those of joined streams.
        """
        if one == other or self._job.streams[other].workload.is_trained:
            return one == other
        joined = self._job.wiring.joined(len(self._job.streams))
        return any({one, other} <= each for each in joined)

    def start(self) -> None:
        """Send the first subnets, including those that an earlier attempt proposed."""
        for number, stream in enumerate(self._job.streams):
            if stream.source is not None:
                planned = stream.source.begin(stream.first, _scores(stream))
                self._tell(number, stream.first, planned)

    def take(self, stream: int, sequence_id: int, loss: float) -> None:
        """Handle the loss of a pass. A source receives its negative value as the score."""
        for number in self._fed[stream]:
            source = self._job.streams[number].source
            known = source.count if source else 0
            if source and (planned := source.take(sequence_id, -loss)):
                self._tell(number, known, planned)

    def _tell(self, stream: int, first: int, planned: Sequence[Planned]) -> None:
        if self._first_steps:
            self._first_steps.take_subnets(stream, first, [each.subnet for each in planned])
        message = SubnetsMessage(StreamId(stream), first, tuple(planned))
        for stage in range(self._job.execution.workers):
            self._send(stage, message)

    def __enter__(self) -> GrowingStreams:
        return self

    def __exit__(self, *exception: object) -> None:
        for stream in self._job.streams:
            if stream.source is not None:
                stream.source.close()


_POLL_SECONDS = 1.0
_LAST_WORDS_SECONDS = 0.5
_BATCHES_KEPT = 4096
"""Number of batches to remember, which exceeds the number in flight."""


def raise_failure(stage: int, body: Mapping[str, Any]) -> NoReturn:
    host, cause = str(body.get("host", "")), str(body.get("cause", ""))
    where = f"stage {stage}, {body['task']}" + (f", on {host}" if host else "")
    match body["kind"]:
        case "input":
            raise ConfigError(body["message"])
        case "storage":
            raise StorageError(f"{body['message']} ({where})")
        case "number":
            raise NotFiniteError(f"{body['message']} ({where})")
        case "bits":
            raise VerificationError(body["message"])
    raise StageFailedError(stage, body["task"], body["traceback"], host, cause)


class StageReports:
    """Handles the reports of every job: heartbeats, failures and results."""

    def __init__(self, num_stages: int) -> None:
        self._num_stages = num_stages
        self.liveness: Liveness | None = None
        self.results: dict[int, dict[str, Any]] = {}

    @property
    def is_complete(self) -> bool:
        return len(self.results) == self._num_stages

    def take(self, kind: str, stage: int, body: dict[str, Any]) -> None:
        """Handle one report. Raise the error that a stage reports."""
        match kind:
            case "beat" if self.liveness is not None:
                self.liveness.hear(stage, time.monotonic(), body["doing"], body["age"])
            case "failed":
                raise_failure(stage, body)
            case "done":
                self.results[stage] = body
                if self.liveness is not None:
                    self.liveness.done(stage)

    def note(self, text: str) -> None:
        """Ignore a line for the user; subclasses may print it."""

    def report(self, kind: str, body: Any) -> None:
        """Handle a report of a job on one stage, which does not use a socket."""
        self.take(kind, 0, dict(body))

    def watch(self, current: Callable[[], str]) -> None:
        """Do nothing, because no other process supervises a job on one stage."""


class Collector(StageReports):
    """Handles the reports of training: writes losses, keeps results, raises the first failure.

    Args:
        num_stages: number of stages whose results are expected.
        losses: the losses of each stream.
        observer: receives losses and notes.
        publisher: receives the parts of checkpoints.
        stop: receives requests to end, and the answers of stages.
        growing: receives losses, from which new subnets are proposed.
        collect: called after each loss, to collect results of validation.
        first_steps: receives losses and layers, and compares them with a plain loop.
        can_cut: whether the run can be ended with a checkpoint if the observer fails.
    """

    def __init__(
        self,
        num_stages: int,
        losses: Sequence[SectionLosses],
        observer: RunObserver,
        publisher: Publisher,
        stop: Stop,
        growing: GrowingStreams,
        collect: Callable[[], None],
        first_steps: FirstSteps | None = None,
        can_cut: bool = True,
    ) -> None:
        super().__init__(num_stages)
        self._can_cut = can_cut
        self._first_steps = first_steps
        self._growing = growing
        self._collect = collect
        self._losses = tuple(losses)
        self._observer = observer
        self._publisher = publisher
        self._stop = stop
        self._batches: OrderedDict[tuple[int, int], tuple[int, str]] = OrderedDict()
        """The stage that first made each batch, and the batch's digest, by stream and number."""
        self.observer_error: ObserverError | None = None
        """The first error of the observer, because of which the end of the run was requested."""

    def take(self, kind: str, stage: int, body: dict[str, Any]) -> None:
        """Handle one report.

        Raises:
            StageFailedError: if a stage reports a failure.
            VerificationError: if one of the first steps differs from the plain loop.
            ConfigError: if the user's input caused the failure, or stages made different batches.
            StorageError: if a file could not be written.
        """
        match kind:
            case "loss":
                stream, sequence_id, loss = body["stream"], body["sequence_id"], body["loss"]
                beside = read_beside(body.get("batch", ""), body.get("metrics", {}))
                losses = self._losses[stream]
                losses.append(body["section"], sequence_id, loss, body["bits"], beside)
                if self._first_steps:
                    self._first_steps.take_loss(stream, sequence_id, body["bits"])
                if body["section"]:
                    return
                with self._observed():
                    if beside.metrics:
                        values = {name: each.value for name, each in beside.metrics}
                        self._observer.on_metrics(stream, sequence_id, values)
                    self._observer.on_loss(stream, sequence_id, loss)
                self._growing.take(stream, sequence_id, loss)
                with self._observed():
                    self._collect()
            case "batch":
                number, digest = body["number"], body["digest"]
                made = self._batches.setdefault((body["stream"], number), (stage, digest))
                if digest != made[1]:
                    raise ConfigError(
                        f"data: expected the same batch {number} in every process, found another "
                        f"one on stage {stage} than on stage {made[0]}; make it from the seed and "
                        f"the number alone, as npp.from_dataset(dataset, batch_size) does "
                        f"(docs/data.md)"
                    )
                if len(self._batches) > _BATCHES_KEPT:
                    self._batches.popitem(last=False)
            case "busy":
                with self._observed():
                    self._observer.on_busy(stage, body["busy_ns"], body["elapsed_ns"])
                    self._observer.on_hits(stage, body["hits"], body["reads"])
                    self._observer.on_pending(stage, body["pending"])
                self._publisher.publish_held()
            case "note":
                self.note(str(body["text"]))
            case "part":
                self._publisher.take(stage, body)
            case "written":
                if self._first_steps:
                    where = body["stream"], body["sequence_id"], body["layer"]
                    self._first_steps.take_layer(*where, body["digests"])
                self._publisher.publish_held()
            case "held":
                self._stop.held(stage, body["admitted"])
            case "signal":
                self._stop.request(body["number"], from_elsewhere=True)
                self._stop.advance()
            case "died":
                host = self.liveness.host(stage) if self.liveness else str(body.get("host", ""))
                raise StageFailedError(stage, _task(self, stage), body["how"], host)
            case _:
                super().take(kind, stage, body)

    def note(self, text: str) -> None:
        with self._observed():
            self._observer.on_note(text)

    @contextmanager
    def _observed(self) -> Iterator[None]:
        """If the observer fails, end the run with a checkpoint, as after a signal."""
        try:
            yield
        except ObserverError as error:
            if not self._can_cut:
                raise
            self.observer_error = self.observer_error or error
            self._stop.request(signal.SIGTERM, from_elsewhere=True, why=str(error))
            self._stop.advance()

    def report(self, kind: str, body: Any) -> None:
        """Take a report of a run on one stage, which comes without a socket."""
        super().report(kind, body)
        self._stop.advance()


def supervise(
    inbox: zmq.Socket[Any],
    processes: Mapping[int, BaseProcess],
    collector: StageReports,
    stop: Stop,
    wakeup: Wakeup,
    beat: Callable[[], None],
) -> None:
    """Handle reports until every stage is done or one has failed.

    Args:
        inbox: receives reports.
        processes: the stages on this machine; agents report the ends of the others.
        collector: handles the reports of all stages.
        stop: the state of a request to end.
        wakeup: set when the end of the run is requested.
        beat: called at least once per second.

    Raises:
        StageFailedError: with the first cause: a failure, the end of a process, or a silent or hung
            stage.
        ConfigError, StorageError: see :meth:`Collector.take`.
    """
    poller = zmq.Poller()
    poller.register(inbox, zmq.POLLIN)
    poller.register(wakeup.fileno(), zmq.POLLIN)
    for process in processes.values():
        poller.register(process.sentinel, zmq.POLLIN)
    look = collector.liveness.look_seconds if collector.liveness else _POLL_SECONDS
    while not collector.is_complete:
        beat()
        ready = dict(poller.poll(int(look * 1000) + 1))
        while inbox.poll(0):
            collector.take(*read_report(inbox.recv()))
        if wakeup.fileno() in ready:
            wakeup.clear()
            stop.advance()
        for stage, process in processes.items():
            if process.sentinel in ready:
                poller.unregister(process.sentinel)
                # Its last report may still arrive; heartbeats of other stages always arrive.
                deadline = time.monotonic() + _LAST_WORDS_SECONDS
                while stage not in collector.results and (left := deadline - time.monotonic()) > 0:
                    if inbox.poll(int(left * 1000) + 1):
                        collector.take(*read_report(inbox.recv()))
                if stage not in collector.results:
                    raise StageFailedError(stage, _task(collector, stage), obituary(process))
        if collector.liveness is not None:
            now = time.monotonic()
            if problem := collector.liveness.problem(now):
                raise StageFailedError(problem.stage, problem.task, problem.why, problem.host)
            for said in collector.liveness.overdue(now):
                collector.note(said)


def _task(collector: StageReports, stage: int) -> str:
    """Return the last reported activity of a stage that died."""
    doing = collector.liveness.doing(stage) if collector.liveness else ""
    return f"an unknown task (last heard at: {doing})" if doing else "an unknown task"

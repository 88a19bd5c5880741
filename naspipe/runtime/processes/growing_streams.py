"""The launcher's side of streams that grow: scores come in, subnets go out to every stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from naspipe.config.ids import StreamId
from naspipe.core.events import Planned
from naspipe.runtime.jobs.job import StreamJob, TrainingJob
from naspipe.runtime.processes.ports import FirstSteps
from naspipe.runtime.wire.messages import SubnetsMessage
from naspipe.trace.results.losses_file import read_losses


class GrowingStreams:
    """Feeds the sources of a job's streams; a context manager.

    Args:
        job: some of whose streams may have a source.
        send: hands a message to a stage.
        first_steps: told of each subnet, for the plain loop that trains the first of them.
    """

    def __init__(
        self,
        job: TrainingJob,
        send: Callable[[int, SubnetsMessage], None],
        first_steps: FirstSteps,
    ) -> None:
        self._job = job
        self._send = send
        self._first_steps = first_steps
        self._fed = [
            [n for n, stream in enumerate(job.streams) if stream.source and self._feeds(number, n)]
            for number in range(len(job.streams))
        ]

    def _feeds(self, one: int, other: int) -> bool:
        """Whether the losses of a stream say how far another is; one without is joined to it."""
        if one == other or self._job.streams[other].workload.is_trained:
            return one == other
        joined = self._job.wiring.joined(len(self._job.streams))
        return any({one, other} <= each for each in joined)

    def start(self) -> None:
        """Tell the stages of the first subnets; those of an earlier life are proposed again."""
        for number, stream in enumerate(self._job.streams):
            if stream.source is not None:
                planned = stream.source.begin(stream.first, _scores(stream))
                self._tell(number, stream.first, planned)

    def take(self, stream: int, sequence_id: int, loss: float) -> None:
        """A pass's loss is known."""
        for number in self._fed[stream]:
            source = self._job.streams[number].source
            known = source.count if source else 0
            if source and (planned := source.take(sequence_id, score_of(loss))):
                self._tell(number, known, planned)

    def _tell(self, stream: int, first: int, planned: Sequence[Planned]) -> None:
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


def _scores(stream: StreamJob) -> Iterator[float]:
    """Of the subnets that are done."""
    for loss in read_losses(stream.directory.losses, stream.first) if stream.first else ():
        yield score_of(loss.value)


def score_of(loss: float) -> float:
    """What a strategy is told of a trained subnet: more is better."""
    return -loss

"""The launcher's side of streams that grow: scores come in, subnets go out to every stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naspipe.core.events import Planned
from naspipe.core.ids import StreamId
from naspipe.runtime.jobs.job import TrainingJob
from naspipe.runtime.wire.messages import SubnetsMessage
from naspipe.trace.results.losses_file import read_losses


class GrowingStreams:
    """Feeds the sources of a job's streams; a context manager.

    Args:
        job: some of whose streams may have a source.
        send: hands a message to a stage.
    """

    def __init__(self, job: TrainingJob, send: Callable[[int, SubnetsMessage], None]) -> None:
        self._job = job
        self._send = send

    def start(self) -> None:
        """Tell the stages of the first subnets; those of an earlier life are proposed again."""
        for number, stream in enumerate(self._job.streams):
            if stream.source is not None:
                losses = read_losses(stream.directory.losses, stream.first) if stream.first else []
                first = stream.source.begin([score_of(loss.value) for loss in losses])
                self._tell(number, 0, first)

    def take(self, stream: int, sequence_id: int, loss: float) -> None:
        """A pass's loss is known."""
        source = self._job.streams[stream].source
        if source is not None:
            known = len(source.proposed)
            if planned := source.take(sequence_id, score_of(loss)):
                self._tell(stream, known, planned)

    def _tell(self, stream: int, first: int, planned: Sequence[Planned]) -> None:
        message = SubnetsMessage(StreamId(stream), first, tuple(planned))
        for stage in range(self._job.execution.workers):
            self._send(stage, message)

    def __enter__(self) -> GrowingStreams:
        return self

    def __exit__(self, *exception: object) -> None:
        for stream in self._job.streams:
            if stream.source is not None:
                stream.source.close()


def score_of(loss: float) -> float:
    """What a strategy is told of a trained subnet: more is better."""
    return -loss

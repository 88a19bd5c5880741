"""Ways between stages, and from a stage to the launcher and on to whoever watches.

========================= ==========================================================================
:class:`Transport`         :class:`~naspipe.wire.transport.ZmqTransport`,
                           :class:`~naspipe.wire.transport.NoTransport` (one stage),
                           :class:`~naspipe.wire.nccl_path.NcclTransport`,
                           :class:`~naspipe.wire.device_rings.DeviceTransport`
:class:`Reporter`          :class:`~naspipe.wire.reports.ZmqReporter`;
                           on one stage the launcher's collector itself,
                           :class:`~naspipe.launch.supervisor.StageReports`
:class:`LaunchObserver`    :class:`~naspipe.wire.reports.Observer`,
                           :class:`~naspipe.wire.reports.NotesToStderr`,
                           :class:`~naspipe.api.recording.Recording`, progress
:class:`RunObserver`       :class:`~naspipe.wire.reports.Observer`,
                           :class:`~naspipe.api.recording.Recording`
========================= ==========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

from naspipe.config.ids import WorkerId
from naspipe.wire.messages import Message, StageMessage


class Sending(NamedTuple):
    """A message on its way."""

    nbytes: int
    is_over: Callable[[], bool]
    """Whether the memory of its tensors is no longer needed; it becomes true only for layers, whose
    memory is reused.
    """


class Transport(Protocol):
    """How a stage sends tensors to another one; a context manager."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

    def send(self, worker: WorkerId, message: StageMessage) -> Sending:
        """Start sending a message; its tensors must not change until it is sent."""

    def receive(self, timeout_seconds: float) -> Message | None:
        """The next message; None if there was none in time (0 only looks), or at a wakeup.

        It may return slightly early, so a caller with a deadline asks again.
        """


class Reporter(Protocol):
    """Takes a stage's reports to the launcher."""

    def report(self, kind: str, body: Mapping[str, Any]) -> None:
        """Send one report, with plain values.

        ``kind`` is ``loss``, ``batch``, ``busy``, ``part`` (of a checkpoint), ``held``, ``beat``,
        ``failed`` or ``done``.
        """

    def watch(self, current: Callable[[], str]) -> None:
        """Set what reports the stage's present activity; it is called on another thread."""


class LaunchObserver(Protocol):
    """Told of the progress of a run, in the launcher's process: progress bars, metrics.

    An exception that it raises ends the run. The methods here do nothing; :class:`Observer`
    inherits them, and is a base class for users.
    """

    def on_begin(self, generation: int, firsts: Sequence[int]) -> None:
        """An attempt begins, with these subnets of each stream: 0, or after a checkpoint.

        Earlier reports of these and later subnets are superseded.
        """
        return

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        """A step's loss is known; steps may come in any order."""
        return

    def on_metrics(self, stream: int, sequence_id: int, metrics: Mapping[str, float]) -> None:
        """A step's metrics are known, if it has any: just before its loss."""
        return

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """A stage's compute time so far, of the time since it began."""
        return

    def on_hits(self, stage: int, hits: int, reads: int) -> None:
        """Number of a stage's accesses so far whose layer was on the device, and of all."""
        return

    def on_validation(self, stream: int, sequence_id: int, scores: Mapping[str, float]) -> None:
        """Results on held-out data, with the updates up to this subnet's."""
        return

    def on_note(self, text: str) -> None:
        """Something that the user should know: a restart, a skipped checkpoint."""
        return


class RunObserver(LaunchObserver, Protocol):
    """A :class:`LaunchObserver` that a launcher tells a little more."""

    def on_pending(self, stage: int, subnets: int) -> None:
        """Number of subnets in flight on a stage: admitted, and not yet retired there."""
        return

"""Protocols for messages between stages, reports to the launcher, and observers of a run.

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
    """A message that is being sent."""

    nbytes: int
    is_over: Callable[[], bool]
    """Returns True once the memory of the tensors is no longer needed. This happens only for
    layers, whose memory is reused.
    """


class Transport(Protocol):
    """Sends tensors between stages; a context manager."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

    def send(self, worker: WorkerId, message: StageMessage) -> Sending:
        """Start sending a message. Its tensors must not change until it has been sent."""

    def receive(self, timeout_seconds: float) -> Message | None:
        """Return the next message; None after the time-out (0 only polls), or at a wakeup.

        It may return slightly early, so a caller with a deadline must call it again.
        """


class Reporter(Protocol):
    """Sends a stage's reports to the launcher."""

    def report(self, kind: str, body: Mapping[str, Any]) -> None:
        """Send one report, with plain values.

        ``kind`` is ``loss``, ``sums``, ``batch``, ``busy``, ``written``, ``part`` (of a
        checkpoint), ``held``, ``note``, ``beat``, ``failed`` or ``done``.
        """

    def watch(self, current: Callable[[], str]) -> None:
        """Set the function that describes the current activity; it is called on another thread."""


class LaunchObserver(Protocol):
    """Receives the progress of a run in the launcher's process, for progress bars and metrics.

    An exception raised by an observer ends the run. The methods of this class do nothing;
    :class:`Observer` inherits them, and is a base class for users.
    """

    def on_begin(self, generation: int, firsts: Sequence[int]) -> None:
        """Handle the start of an attempt at these subnets of each stream: 0, or after a checkpoint.

        Earlier reports of these and later subnets are superseded.
        """
        return

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        """Handle a step's loss; steps may be reported in any order."""
        return

    def on_metrics(self, stream: int, sequence_id: int, metrics: Mapping[str, float]) -> None:
        """Handle a step's metrics, if any, which are reported just before its loss."""
        return

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """Handle a stage's compute time so far and the time since it began."""
        return

    def on_hits(self, stage: int, hits: int, reads: int) -> None:
        """Handle the numbers of a stage's reads that found the layer on the device, and of all."""
        return

    def on_validation(self, stream: int, sequence_id: int, scores: Mapping[str, float]) -> None:
        """Handle results on held-out data, which include the updates up to this subnet."""
        return

    def on_note(self, text: str) -> None:
        """Handle a message for the user, such as a restart or a skipped checkpoint."""
        return


class RunObserver(LaunchObserver, Protocol):
    """A :class:`LaunchObserver` that receives additional reports."""

    def on_pending(self, stage: int, subnets: int) -> None:
        """Handle the number of subnets in flight on a stage: admitted but not yet retired."""
        return

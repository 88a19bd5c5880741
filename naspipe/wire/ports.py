"""Ways between stages, and from a stage to the launcher and on to whoever watches.

========================= ==========================================================================
:class:`Transport`         :class:`~naspipe.wire.transport.ZmqTransport`,
                           :class:`~naspipe.wire.transport.NoTransport` (one stage),
                           :class:`~naspipe.wire.nccl_path.NcclTransport`,
                           :class:`~naspipe.wire.device_rings.DeviceTransport`
:class:`PeerMemory`        :class:`~naspipe.wire.device_rings.CudaMemory`
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
from naspipe.machine.ports import Mark
from naspipe.wire.messages import Message, StageMessage


class Sending(NamedTuple):
    """A message on its way."""

    nbytes: int
    is_over: Callable[[], bool]
    """Whether its tensors' memory is needed no more; never said but of layers, whose memory is
    used again."""


class Transport(Protocol):
    """How a stage hands tensors to another one; a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...

    def send(self, worker: WorkerId, message: StageMessage) -> Sending:
        """Start sending a message; its tensors must not change until it is sent."""
        ...

    def receive(self, timeout_seconds: float) -> Message | None:
        """The next message; None when there was none in time (0 only looks), or at a wakeup.

        It may end a little before its time, so whoever has a deadline asks again.
        """
        ...


class PeerMemory(Protocol):
    """Memory that one process makes and another one of its host opens; addresses are bytes."""

    def make(self, nbytes: int) -> tuple[int, bytes] | None:
        """The address of new memory, and what another process opens it by; None without room."""
        ...

    def open(self, handle: bytes) -> int:
        """The address here of what another process made.

        Raises:
            TransportError: when it cannot be had here.
        """
        ...

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Queue a copy behind what this stage has computed, and before what it will compute."""
        ...

    def mark(self) -> Mark:
        """The end of all copies so far; None where they are over already."""
        ...

    def close(self) -> None:
        """Give back what was made and opened here; nobody uses it any more."""
        ...


class Reporter(Protocol):
    """Takes a stage's reports to the launcher."""

    def report(self, kind: str, body: Mapping[str, Any]) -> None:
        """Hand one report on, with plain values.

        ``loss``, ``batch``, ``busy``, ``part`` (of a checkpoint), ``held``, ``beat``, ``failed`` or
        ``done``.
        """
        ...

    def watch(self, current: Callable[[], str]) -> None:
        """Tell now and then what this says the stage is at; it is called on another thread."""
        ...


class LaunchObserver(Protocol):
    """Told of a run as it goes, in the launcher's process: progress bars, metrics.

    What it raises ends the run. :class:`Observer` is one to derive from.
    """

    def on_begin(self, generation: int, firsts: Sequence[int]) -> None:
        """A life of the run begins, with these subnets of each stream: 0, or behind a checkpoint.

        What was told of them and of later ones in earlier lives does not count any more.
        """
        ...

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        """A step's loss is known; steps may come in any order."""
        ...

    def on_metrics(self, stream: int, sequence_id: int, metrics: Mapping[str, float]) -> None:
        """A step's metrics are known, where it has any: just before its loss is told."""
        ...

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """A stage's compute time so far, of the time since it began."""
        ...

    def on_hits(self, stage: int, hits: int, reads: int) -> None:
        """Of a stage's accesses so far, those whose layer was there when they could begin."""
        ...

    def on_validation(self, stream: int, sequence_id: int, scores: Mapping[str, float]) -> None:
        """How the supernet does on held-out data, with the updates up to this subnet's."""
        ...

    def on_note(self, text: str) -> None:
        """Something that whoever watches should know: a restart, a checkpoint passed over."""
        ...


class RunObserver(LaunchObserver, Protocol):
    """What a launcher tells: a :class:`LaunchObserver` that wants to know a little more."""

    def on_pending(self, stage: int, subnets: int) -> None:
        """How many subnets are under way on a stage: admitted, and not yet retired there."""
        ...

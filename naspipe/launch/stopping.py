"""The early end of a run, requested from every stage in two rounds: hold, then stop at a cut."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from naspipe.config.errors import RunInterruptedError
from naspipe.machine.forking import ASKING, WARNING, leave_signals_to_launcher
from naspipe.wire.messages import HOLD, STOP, ControlMessage


class Stop:
    """The launcher's state of a request to end.

    Every stage receives a hold message, and reports how many subnets of each stream it has
    admitted. Every stage can reach the largest of these numbers, so each stream is cut there.

    Args:
        num_stages: number of stages whose answers are expected.
        send: sends a message to a stage.
        joined: groups of streams that need one another's passes, so that they share a cut.
        say: receives a line for the user when the end begins.
    """

    def __init__(
        self,
        num_stages: int,
        send: Callable[[int, ControlMessage], None],
        joined: Iterable[Collection[int]] = (),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._joined = tuple(joined)
        self._num_stages = num_stages
        self._send = send
        self._say = say
        self._is_sent = False
        self._why = ""
        self._admitted: dict[int, Sequence[int]] = {}
        self.signal_number = 0
        """The signal that requested the end, or 0."""
        self.from_elsewhere = True
        """False if this process itself received a signal."""

    def request(self, signal_number: int, from_elsewhere: bool = False, why: str = "") -> None:
        """Request the end; may be called by a signal handler.

        Args:
            signal_number: the signal, or the signal as which the request is treated.
            from_elsewhere: whether another host received it.
            why: the reason for the user; by default the name of the signal.
        """
        self.signal_number = signal_number
        self._why = self._why or why
        self.from_elsewhere &= from_elsewhere

    def held(self, stage: int, admitted: Sequence[int]) -> None:
        """Record that a stage has stopped admitting subnets."""
        self._admitted[stage] = admitted
        if self._is_sent and len(self._admitted) == self._num_stages:
            cuts = list(map(max, zip(*self._admitted.values(), strict=True)))
            for streams in self._joined:
                last = max(cuts[stream] for stream in streams)
                for stream in streams:
                    cuts[stream] = last
            self._send_all(ControlMessage(STOP, tuple(cuts)))

    def advance(self) -> None:
        if self.signal_number and not self._is_sent:
            self._is_sent = True
            name = self._why or signal.Signals(self.signal_number).name
            self._say(
                f"{name}: ending with a checkpoint, once the subnets under way are through; "
                f"a second one ends at once, and loses what follows the last checkpoint"
            )
            self._send_all(ControlMessage(HOLD))

    def _send_all(self, message: ControlMessage) -> None:
        for stage in range(self._num_stages):
            self._send(stage, message)


def end_parent_too() -> None:
    """End the parent process as if it had received the signal, and answer no more signals."""
    leave_signals_to_launcher()
    os.kill(os.getppid(), signal.SIGTERM)


@contextmanager
def answered_signals(answer: Callable[[int], None]) -> Iterator[None]:
    """Answer SIGINT, SIGTERM and SIGHUP; a second SIGINT or SIGTERM raises ``KeyboardInterrupt``.

    SIGHUP does not count as the second signal, because it accompanies others: a shell sends it at
    its end, and systemd right after SIGTERM. Neither do SIGUSR1 and SIGUSR2, which a batch
    scheduler sends before SIGTERM; they are answered unless the user has handlers for them.
    Outside the main thread nothing is changed, and an ignored signal stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if number not in (signal.SIGHUP, *WARNING):
            asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt
        answer(number)

    heeded = [each for each in ASKING if signal.getsignal(each) is not signal.SIG_IGN]
    heeded += [each for each in WARNING if signal.getsignal(each) is signal.SIG_DFL]
    with _handled(heeded, handle):
        yield


class _AskedToEnd(BaseException):
    """Raised by a handler. It is a BaseException, so that checks do not blame user code for it."""


@contextmanager
def ended_by_signals(when: str) -> Iterator[None]:
    """Raise an error on SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2, which would end the process silently.

    Outside the main thread nothing is changed, and a signal that has a handler keeps it.

    Args:
        when: part of the message.

    Raises:
        RunInterruptedError: on receipt of the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # in a process that was forked in the meantime
            os._exit(128 + number)
        raise _AskedToEnd(number)

    silent = (signal.SIGTERM, signal.SIGHUP, *WARNING)
    try:
        with (
            _handled([each for each in silent if signal.getsignal(each) is signal.SIG_DFL], handle),
            _sent_again(),
        ):
            yield
    except _AskedToEnd as asked:
        (number,) = asked.args
        raise RunInterruptedError(
            number, f"interrupted by {signal.Signals(number).name} {when}"
        ) from None


@contextmanager
def _sent_again() -> Iterator[None]:
    """Resend a signal if Python drops its exception, as in finalizers and fork hooks."""
    before, main = sys.unraisablehook, threading.get_ident()

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, _AskedToEnd):
            (number,) = dropped.exc_value.args
            threading.Timer(0.01, signal.pthread_kill, (main, number)).start()
        else:
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def _handled(
    numbers: Collection[int], handle: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    before: Mapping[int, object] = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])  # type: ignore[arg-type]

"""Run the plain loop in a forked process beside the start of a run, and compare the two.

The process is forked from the launcher before any stage computes, so it has the user's own modules,
data and loss, and whatever it does to them is lost with it. It runs at low priority. The launcher
hands on what the stages report, reads what the plain loop reports, and raises at the first
difference. Before a checkpoint is published, the launcher waits for the comparison of the steps so
far, but never longer than a bound.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self

from naspipe.core.errors import NaspipeError
from naspipe.runtime.forking.fork import (
    FORK,
    end_all,
    leave_signals_to_launcher,
    obituary,
    quiet_fork,
)
from naspipe.runtime.forking.own_thread import in_own_thread
from naspipe.verification.comparison import Comparison, Digests
from naspipe.verification.records import NotVerifiable

PRIORITY = 10
"""What is added to the niceness of the plain loop's process."""

SHARE, LEAST_SECONDS, MOST_SECONDS = 0.1, 5.0, 60.0
"""The launcher waits for the plain loop for this share of the time since the run began, but at
least and at most for so many seconds."""

_NOT_REPORTED = "because the run did not report all of its first steps"

Records = Callable[[], Iterator[Mapping[str, Any]]]
"""Makes the plain loop and yields, step by step, what it leaves: ``step`` and ``streams``."""


@dataclass(frozen=True, slots=True)
class Verified:
    """How far a run was verified."""

    steps: int
    """The first steps that have the bits of the plain loop."""
    because: str = ""
    """Why they are not more, or none; empty if all were compared that were asked for."""

    def __str__(self) -> str:
        if not self.steps:
            return f"verified: no, {self.because}"
        count = f"{self.steps} step{'s' * (self.steps > 1)}"
        return f"verified: {count}, 0 bits differ" + (f" ({self.because})" if self.because else "")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        return {"steps": self.steps, **({"because": self.because} if self.because else {})}


class Verifier:
    """Compares the first steps of a run with its plain loop; a context manager.

    Args:
        comparison: takes what both sides report.
        records: runs the plain loop, in the forked process.
        threads: intra-op threads of the plain loop.
    """

    def __init__(self, comparison: Comparison, records: Records, threads: int) -> None:
        self._comparison = comparison
        self._records = records
        self._threads = threads
        self._process: BaseProcess | None = None
        self._receiver: Connection | None = None
        self._because = ""
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        self._receiver, sender = FORK.Pipe(duplex=False)
        work = (self._records, self._threads, sender)
        self._process = FORK.Process(target=_main, args=work, name="naspipe-verify")
        with quiet_fork():
            self._process.start()
        sender.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    @property
    def passes(self) -> int:
        """Whatever has a sequence ID below this is compared."""
        return self._comparison.num_passes

    @property
    def is_settled(self) -> bool:
        """Whether the comparison is over: complete, or given up after the bound."""
        if self._is_open and time.monotonic() - self._start > MOST_SECONDS:
            self._give_up("because the plain loop took too long")
        return not self._is_open

    @property
    def _is_open(self) -> bool:
        """Whether steps are still to be compared; the plain loop may have ended before the run."""
        return not self._because and not self._comparison.is_complete

    def take_loss(self, stream: int, sequence_id: int, bits: str) -> None:
        """A stage reported a loss. Raises VerificationError at a difference."""
        if self._is_open:
            self._comparison.add_loss(stream, sequence_id, bits)
            self._read(0.0)

    def take_layer(self, stream: int, sequence_id: int, label: str, digests: Digests) -> None:
        """A stage reported a layer that it wrote. Raises VerificationError at a difference."""
        if self._is_open:
            self._comparison.add_layer(stream, sequence_id, label, digests)
            self._read(0.0)

    def wait(self) -> None:
        """Wait until the plain loop is through, within the bound. Raises VerificationError."""
        share = SHARE * (time.monotonic() - self._start)
        deadline = time.monotonic() + min(MOST_SECONDS, max(LEAST_SECONDS, share))
        while self._process is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                self._give_up("because the plain loop took too long")
            else:
                self._read(left)
        if self._is_open:
            self._because = _NOT_REPORTED

    @property
    def result(self) -> Verified:
        """How far the run was verified by now."""
        because = _NOT_REPORTED if self._is_open else self._because
        return Verified(self._comparison.verified_steps, because)

    def _read(self, seconds: float) -> None:
        """Take what the plain loop has reported, and wait for more for so long."""
        receiver = self._receiver
        while self._process is not None and receiver is not None and receiver.poll(seconds):
            seconds = 0.0
            try:
                answer = json.loads(receiver.recv_bytes())
            except EOFError:
                self._give_up(f"because of the plain loop: {obituary(self._process)}")
                return
            if because := answer.get("because"):
                self._give_up(because)
            elif answer.get("done"):
                self._end()
            else:
                self._comparison.add_plain(answer["step"], answer["streams"])

    def _give_up(self, because: str) -> None:
        self._because = because
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            end_all([self._process])
            self._process = None
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None


def _end_with_launcher() -> None:
    """Have the kernel end this process when the launcher is killed."""
    set_parent_death_signal = 1
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL))


def _main(records: Records, threads: int, sender: Connection) -> None:
    leave_signals_to_launcher()
    _end_with_launcher()
    os.nice(PRIORITY)

    def tell(answer: Mapping[str, Any]) -> None:
        sender.send_bytes(json.dumps(answer).encode())

    def work() -> None:
        for record in records():
            tell(record)

    try:
        in_own_thread(threads, work)
        tell({"done": True})
    except NotVerifiable as error:
        tell({"because": str(error)})
    except NaspipeError as error:
        tell({"because": f"because the plain loop ended with: {error}"})
    except Exception as error:
        where = traceback.format_exc().strip().splitlines()[-1]
        tell({"because": f"because the plain loop failed with {type(error).__name__}: {where}"})

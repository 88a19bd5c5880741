"""Run the plain loop in a forked process alongside the first steps of a run, and compare the two.

The process is forked from the launcher before any stage computes, so it has the user's own modules,
data and loss, and its changes to them do not affect the run. It runs at low priority. The launcher
collects the reports of the stages and of the plain loop, and raises at the first difference. Before
a checkpoint is published, the launcher waits for the comparison of all steps so far, up to a time
limit.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import torch

from naspipe.config.errors import NaspipeError
from naspipe.config.ids import Subnet
from naspipe.machine.forking import (
    FORK,
    end_all,
    in_own_thread,
    leave_signals_to_launcher,
    obituary,
    quiet_fork,
)
from naspipe.verification.comparison import Comparison
from naspipe.verification.records import LayerDigests, NotVerifiable

PRIORITY = 10
"""Increment of the niceness of the plain loop's process."""

GPU_SHARE = 0.25
"""Fraction of a GPU's memory that the plain loop may use, so that the run has the rest."""

Work = Callable[[Connection], Iterator[Mapping[str, Any]]]
"""Takes the connection to the launcher and yields messages to send to it."""


class PlainProcess:
    """Runs a plain computation in a process that is forked from the launcher.

    The process has low priority, and is the first to be killed if memory runs out.

    Args:
        work: the computation.
        threads: number of intra-op threads.
        what: name of the computation in messages.
    """

    def __init__(self, work: Work, threads: int, what: str) -> None:
        self._work, self._threads, self._what = work, threads, what
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Fork the process; call this before any stage is forked."""
        self._connection, theirs = FORK.Pipe()
        work = (self._work, self._threads, self._what, theirs)
        self._process = FORK.Process(target=_report_all, args=work, name="naspipe-verify")
        with quiet_fork():
            self._process.start()
        theirs.close()

    def send(self, message: Any) -> None:
        """Send a message to the computation. If it has ended, :meth:`answers` reports why."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.send_bytes(json.dumps(message).encode())

    def answers(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Yield the messages that have arrived, waiting up to ``seconds`` for the first one.

        The last message has ``because`` if the computation cannot continue, or ``done``.
        """
        while self._connection is not None and self._connection.poll(seconds):
            seconds = 0.0
            try:
                yield json.loads(self._connection.recv_bytes())
            except (EOFError, ConnectionResetError):
                assert self._process is not None, "it is connected"
                yield {"because": f"because of the {self._what}: {obituary(self._process)}"}
                return

    def end(self) -> None:
        if self._process is not None:
            end_all([self._process])
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def limit_gpu_memory(device: str) -> None:
    """Limit this process to :data:`GPU_SHARE` of the memory of each GPU."""
    if device == "cuda":
        for number in range(torch.cuda.device_count()):
            torch.cuda.set_per_process_memory_fraction(GPU_SHARE, number)


def _report_all(work: Work, threads: int, what: str, connection: Connection) -> None:
    """Send the messages of a computation, and then how it ended; runs in the forked process.

    The run has precedence for time and memory: if memory runs out, the kernel kills this process
    first, and the launcher reports that the run was not verified.
    """
    leave_signals_to_launcher()
    set_parent_death_signal = 1
    if sys.platform == "linux":  # the kernel kills this process if the launcher is killed
        ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL))
    os.nice(PRIORITY)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")

    def tell(answer: Mapping[str, Any]) -> None:
        connection.send_bytes(json.dumps(answer).encode())

    def compute() -> None:
        for answer in work(connection):
            tell(answer)

    try:
        in_own_thread(threads, compute)
        tell({"done": True})
    except NotVerifiable as error:
        tell({"because": str(error)})
    except torch.OutOfMemoryError:
        tell({"because": f"because the {what} needs more than {GPU_SHARE:.0%} of a GPU's memory"})
    except NaspipeError as error:
        tell({"because": f"because the {what} ended with: {error}"})
    except Exception as error:
        where = traceback.format_exc().strip().splitlines()[-1]
        tell({"because": f"because the {what} failed with {type(error).__name__}: {where}"})


SHARE, LEAST_SECONDS, MOST_SECONDS = 0.1, 5.0, 60.0
"""With ``verify=auto``, the launcher waits for the plain loop for this fraction of the time since
the run started, within these minimum and maximum numbers of seconds."""

TOO_SLOW = "because the plain loop took too long"
NOT_REPORTED = "because the run did not report all of its first steps"

Proposed = Callable[[int], Iterator[Sequence[int]]]
"""Takes the number of a stream that grows during the run, and yields its subnets as chains of
options, as they become known. The chain of a skipped pass is empty."""

Records = Callable[[Proposed], Iterator[Mapping[str, Any]]]
"""Makes the plain loop and yields the results of each step as ``step`` and ``streams``."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The extent to which a run was verified."""

    steps: int
    """Number of steps that are bitwise equal to those of the plain loop."""
    because: str = ""
    """Why not all requested steps were compared; empty if they were."""
    first: int = 0
    """The first of these steps: 0, or the first step of the run's last attempt."""
    note: str = ""
    """A line about layers with state that checkpoints do not contain; empty if none."""

    def __str__(self) -> str:
        if not self.steps:
            return f"verified: no, {self.because}"
        count = f"{self.steps} step{'s' * (self.steps > 1)}"
        count += f" from step {self.first} on" if self.first else ""
        return f"verified: {count}, 0 bits differ" + (f" ({self.because})" if self.because else "")

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"steps": self.steps}
        if self.first:
            found["first"] = self.first
        if self.because:
            found["because"] = self.because
        return found


class Verifier:
    """Compares the first steps of a run with its plain loop; a context manager.

    Args:
        comparison: compares the reports of both sides.
        records: runs the plain loop in the forked process.
        threads: intra-op threads of the plain loop.
        step_seconds: wait as long as no step of the plain loop takes longer than this; None to
            wait only for a fraction of the run's time, and then continue without verification.
    """

    def __init__(
        self,
        comparison: Comparison,
        records: Records,
        threads: int,
        step_seconds: float | None = None,
    ) -> None:
        self._comparison = comparison
        self._records = records
        self._step_seconds = step_seconds
        self._plain = PlainProcess(self._train, threads, "plain loop")
        self._because = ""
        self._start = self._heard = time.monotonic()

    def _train(self, launcher: Connection) -> Iterator[Mapping[str, Any]]:
        waiting: dict[int, deque[Sequence[int]]] = defaultdict(deque)

        def proposed(stream: int) -> Iterator[Sequence[int]]:
            while True:
                while not waiting[stream]:
                    other, chains = json.loads(launcher.recv_bytes())
                    waiting[other] += chains
                yield waiting[stream].popleft()

        return self._records(proposed)

    def __enter__(self) -> Self:
        self._plain.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._plain.end()

    @property
    def end(self) -> int:
        """The first sequence ID that is not compared."""
        return self._comparison.end

    def may_publish(self, cut: int) -> bool:
        """Return True if all steps before a cut have been compared, or the comparison has ended.

        Raises:
            VerificationError: at a difference.
        """
        self._read(0.0)
        if self._comparison.verified_until >= cut:
            return True
        if self._is_open and time.monotonic() > self._deadline(MOST_SECONDS):
            self._give_up(TOO_SLOW if self._plain.is_running else NOT_REPORTED)
        return not self._is_open

    @property
    def _is_open(self) -> bool:
        """True if steps remain to be compared; the plain loop may have ended before the run."""
        return not self._because and not self._comparison.is_complete

    def _deadline(self, seconds: float) -> float:
        """Return when to give up, after the start or the last report of either side."""
        if self._step_seconds is None:
            return self._start + seconds
        return self._heard + self._step_seconds

    def take_subnets(self, stream: int, first: int, subnets: Sequence[Subnet]) -> None:
        """Add new subnets of a growing stream, whose sequence IDs start at ``first``."""
        compared = [list(each.chain) for each in subnets][: max(0, self.end - first)]
        if compared:
            self._plain.send([stream, compared])

    def take_loss(self, stream: int, sequence_id: int, bits: str) -> None:
        """Add a loss that a stage reported; VerificationError at a difference."""
        if self._is_open:
            self._heard = time.monotonic()
            self._comparison.add_loss(stream, sequence_id, bits)
            self._read(0.0)

    def take_layer(self, stream: int, sequence_id: int, label: str, digests: LayerDigests) -> None:
        """Add a written layer that a stage reported; VerificationError at a difference."""
        if self._is_open:
            self._heard = time.monotonic()
            self._comparison.add_layer(stream, sequence_id, label, digests)
            self._read(0.0)

    def wait(self) -> None:
        """Wait for the plain loop to end, up to a time limit; VerificationError at a difference."""
        passed = time.monotonic() - self._start
        patience = passed + min(MOST_SECONDS, max(LEAST_SECONDS, SHARE * passed))
        while self._plain.is_running:
            left = self._deadline(patience) - time.monotonic()
            if left <= 0:
                self._give_up(TOO_SLOW)
            else:
                self._read(left)
        if self._is_open:
            self._because = NOT_REPORTED

    @property
    def result(self) -> Verified:
        because = NOT_REPORTED if self._is_open else self._because
        compared = self._comparison
        return Verified(compared.verified_steps, because, compared.first, compared.note)

    def _read(self, seconds: float) -> None:
        """Process the reports of the plain loop, waiting up to ``seconds`` for the first one."""
        for answer in self._plain.answers(seconds):
            if because := answer.get("because"):
                self._give_up(because)
            elif answer.get("done"):
                self._plain.end()
            else:
                self._heard = time.monotonic()
                self._comparison.add_plain(answer["step"], answer["streams"])

    def _give_up(self, because: str) -> None:
        self._because = because
        self._plain.end()

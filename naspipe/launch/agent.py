"""The agent: a worker that runs one stage of a run whose launcher, rank 0, is another process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import msgpack
import zmq

from naspipe.config.errors import RunInterruptedError, TransportError
from naspipe.config.execution import Execution
from naspipe.config.ids import WorkerId
from naspipe.launch.hosts import ALIVE, END, JOB, Hosts, read_word
from naspipe.launch.liveness import no_sign_of_life
from naspipe.launch.stopping import answered_signals
from naspipe.machine.forking import FORK, end_all, obituary, quiet_fork
from naspipe.wire.transport import Authenticator, Wakeup, bind_inbox, connect_outbox
from naspipe.worker.job import TrainingJob
from naspipe.worker.stage_main import stage_main

_POLL_MS = 500
_LINGER_MS = 2_000

Prepare = Callable[[dict[str, Any]], TrainingJob]
"""Creates the job from rank 0's assignment; raises ConfigError if that is a different job."""


def run_agent(
    hosts: Hosts,
    execution: Execution,
    prepare: Prepare,
    *,
    answers_signals: bool,
    how_to_go_on: str = "",
) -> None:
    """Run this worker's stage, and supervise it and rank 0 until rank 0 reports the end of the run.

    The stage is forked before this process opens any socket.

    Args:
        hosts: all hosts, including this one.
        execution: the execution settings of the run.
        prepare: creates the job.
        answers_signals: whether a signal ends the run with a checkpoint, through rank 0.
        how_to_go_on: advice in the message if rank 0 is lost.

    Raises:
        TransportError: if rank 0 reports that the run failed, or sends nothing for too long.
        RunInterruptedError: if rank 0 reports that a signal on any host ended the run.
    """
    rank = hosts.worker.rank
    parent = os.getppid()
    parent_pipe = os.pipe()
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(
        target=stage_main,
        args=(partial(_prepared, receiver, prepare), WorkerId(rank), hosts.endpoints, parent_pipe),
        kwargs={"launcher_is_elsewhere": True},
        name=f"naspipe-stage-{rank}",
    )
    with ExitStack() as stack:
        with quiet_fork():
            process.start()
        stack.callback(os.close, parent_pipe[1])
        stack.callback(end_all, [process])
        os.close(parent_pipe[0])
        receiver.close()
        stack.enter_context(sender)
        context: zmq.Context[Any] = zmq.Context()
        stack.callback(context.destroy, linger=_LINGER_MS)
        stack.enter_context(Authenticator(context, hosts.endpoints.public_keys.values()))
        agent = _Agent(hosts, execution, process, sender, parent, context, how_to_go_on)
        wakeup = stack.enter_context(Wakeup())

        def answer(number: int) -> None:
            agent.signals.append(number)
            wakeup.set()

        stack.enter_context(answered_signals(answer) if answers_signals else nullcontext())
        agent.watch(wakeup)


def _prepared(receiver: Connection, prepare: Prepare) -> TrainingJob:
    return prepare(msgpack.unpackb(receiver.recv_bytes(), strict_map_key=False))


@dataclass(slots=True)
class _Agent:
    """The agent's view of its stage and of rank 0."""

    hosts: Hosts
    execution: Execution
    process: BaseProcess
    sender: Connection
    parent: int
    context: zmq.Context[Any]
    how_to_go_on: str = ""
    signals: list[int] = field(default_factory=list)
    _inbox: zmq.Socket[Any] = field(init=False)
    _outbox: zmq.Socket[Any] = field(init=False)
    _is_assigned: bool = False
    _is_running: bool = True

    def __post_init__(self) -> None:
        endpoints, rank = self.hosts.endpoints, self.hosts.worker.rank
        self._inbox = bind_inbox(self.context, self.hosts.agents[rank - 1], endpoints)
        self._outbox = connect_outbox(self.context, endpoints.launcher, endpoints)

    def watch(self, wakeup: Wakeup) -> None:
        """Return when the run has ended normally; see :func:`run_agent`."""
        poller = zmq.Poller()
        for each in (self._inbox, wakeup.fileno(), self.process.sentinel):
            poller.register(each, zmq.POLLIN)
        heard = time.monotonic()
        while True:
            ready = dict(poller.poll(_POLL_MS))
            while self._inbox.poll(0):
                heard = time.monotonic()
                if self._take(*read_word(self._inbox.recv())):
                    return
            if wakeup.fileno() in ready:
                wakeup.clear()
                for number in self.signals:
                    self._report("signal", {"number": number})
            if self.process.sentinel in ready:
                poller.unregister(self.process.sentinel)
                self._is_running = False
                self.process.join()
                if self.process.exitcode != 0:  # the stage could not report the reason
                    how = obituary(self.process)
                    self._report("died", {"how": how, "host": os.uname().nodename})
            self._check(time.monotonic() - heard)

    def _take(self, what: str, body: Any) -> bool:
        """Handle a message from rank 0. Return True if it was the last one."""
        if what == JOB:
            self._is_assigned = True
            self.sender.send_bytes(msgpack.packb(body))
        elif what == END:
            problem, signal_number = body
            message = f"rank {self.hosts.worker.rank}: rank 0 ended the run: {problem}"
            if signal_number:
                raise RunInterruptedError(signal_number, message, from_elsewhere=not self.signals)
            if problem:
                raise TransportError(message)
        elif what != ALIVE:
            raise TransportError(f"expected job, alive or end from rank 0, found {what!r:.40}")
        return what == END

    def _report(self, kind: str, body: dict[str, Any]) -> None:
        self._outbox.send(msgpack.packb([kind, self.hosts.worker.rank, body]))

    def _check(self, silence: float) -> None:
        """Check rank 0, which sends heartbeats while it supervises, and the parent process."""
        is_supervised = self._is_assigned and self._is_running
        limit = self.execution.watch.timeout_seconds
        if is_supervised:
            limit = self.execution.watch.silence_seconds
        problem = ""
        if silence > limit:
            first, here = self.hosts.places[0], self.hosts.places[self.hosts.worker.rank]
            who = f"the launcher (rank 0, {self.hosts.endpoints.launcher})"
            problem = f"{who}: {no_sign_of_life(first, here, silence)}"
        elif os.getppid() != self.parent:
            problem = "who started it has ended"
        if problem:
            how = f"its worker has ended it: {problem}"
            self._report("died", {"how": how, "host": os.uname().nodename})
            who = f"rank {self.hosts.worker.rank} on {os.uname().nodename}"
            more = f"; {self.how_to_go_on}" if self.how_to_go_on else ""
            raise TransportError(f"{who}: {problem}{more}")

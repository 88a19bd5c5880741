"""What the launcher makes of stages' reports and ends, fed with report frames: no forks."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack

import msgpack
import pytest
import zmq

from naspipe.config.errors import (
    ConfigError,
    NotFiniteError,
    StageFailedError,
    StorageError,
    TransportError,
)
from naspipe.launch import supervisor
from naspipe.launch.liveness import Liveness, Problem
from naspipe.launch.stopping import Stop
from naspipe.launch.supervisor import StageReports, supervise
from naspipe.wire.endpoints import ipc_endpoints
from naspipe.wire.messages import HOLD, ControlMessage
from naspipe.wire.reports import read_report
from naspipe.wire.transport import Wakeup, bind_inbox, connect_outbox


class Ended:
    """Stands for a stage's process: readable at its end, with an exit code."""

    def __init__(self):
        self.sentinel, self._write_end = os.pipe()
        self.exitcode = None

    def end(self, exitcode):
        self.exitcode = exitcode
        os.close(self._write_end)
        self._write_end = None

    def join(self, timeout=None):
        assert self.exitcode is not None

    def close(self):
        os.close(self.sentinel)
        if self._write_end is not None:
            os.close(self._write_end)


class FakeRun:
    """The launcher's side of a run on some stages, and the stages' ways to it."""

    def __init__(self, stack, path, stages=2):
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)
        endpoints = ipc_endpoints(path, stages)
        self.inbox = bind_inbox(context, endpoints.launcher, endpoints)
        self.outboxes = [
            connect_outbox(context, endpoints.launcher, endpoints) for _ in range(stages)
        ]
        self.processes = {stage: Ended() for stage in range(stages)}
        for process in self.processes.values():
            stack.callback(process.close)
        self.sent, self.beats = [], 0
        self.stop = Stop(stages, lambda stage, message: self.sent.append((stage, message)))
        self.wakeup = stack.enter_context(Wakeup())
        self.collector = StageReports(stages)

    def report(self, kind, stage, /, **body):
        self.outboxes[stage].send(msgpack.packb([kind, stage, body]))

    def beat(self):
        self.beats += 1

    def supervise(self):
        supervise(
            self.inbox, self.processes, self.collector, self.stop, self.wakeup, self.beat
        )  # fmt: skip


@pytest.fixture
def run(tmp_path_factory):
    with ExitStack() as stack:
        yield FakeRun(stack, tmp_path_factory.mktemp("s"))


def test_it_ends_when_every_stage_is_done(run):
    run.report("done", 1, measured={"n": 1})
    run.report("done", 0, measured={"n": 0})
    run.supervise()
    assert run.collector.results == {n: {"measured": {"n": n}} for n in (0, 1)}
    assert run.beats >= 1


def test_it_waits_for_every_stage(run):
    run.report("done", 0)
    timer = threading.Timer(0.2, run.report, ("done", 1))
    start = time.monotonic()
    timer.start()
    run.supervise()
    timer.join()
    assert time.monotonic() - start >= 0.2


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("input", ConfigError),
        ("storage", StorageError),
        ("number", NotFiniteError),
        ("", StageFailedError),
    ],
)
def test_a_failure_is_raised_as_what_it_is(run, kind, error):
    run.report(
        "failed", 1, kind=kind, message="what to do", task="0.3F@1", traceback="Trace\nback",
        host="far", cause="OSError: gone",
    )  # fmt: skip
    with pytest.raises(error) as caught:
        run.supervise()
    if error is StageFailedError:
        assert (caught.value.stage, caught.value.task) == (1, "0.3F@1")
        assert caught.value.traceback_text == "Trace\nback"
        first, *more = str(caught.value).splitlines()
        assert first == "stage 1 failed in 0.3F@1 on far: OSError: gone"
        assert more == ["Trace", "back"]
    else:
        where = "" if error is ConfigError else " (stage 1, 0.3F@1, on far)"
        assert str(caught.value) == f"what to do{where}"


def test_the_first_failure_is_the_cause(run):
    run.report("failed", 1, kind="", message="", task="first", traceback="")
    run.report("failed", 1, kind="", message="", task="second", traceback="")
    with pytest.raises(StageFailedError) as caught:
        run.supervise()
    assert caught.value.task == "first"


@pytest.mark.parametrize(
    ("code", "said"), [(-9, "killed by signal 9"), (7, "ended with exit status 7 and no report")]
)
def test_a_process_that_ends_without_a_word_is_named_with_what_it_was_at(run, code, said):
    run.collector.liveness = Liveness([0, 1], time.monotonic(), 60.0, 60.0)
    run.report("beat", 1, doing="0.3F@1 block 4", age=0.1)
    run.processes[1].end(code)
    with pytest.raises(StageFailedError, match=said) as caught:
        run.supervise()
    assert caught.value.stage == 1
    assert caught.value.task == "an unknown task (last heard at: 0.3F@1 block 4)"


@pytest.mark.timeout(60)
def test_a_silence_shorter_than_a_look_every_second_is_seen(run):
    """Who looked too rarely took each silence for its own."""
    run.collector.liveness = Liveness([0, 1], time.monotonic(), 0.8, 60.0)
    with pytest.raises(StageFailedError, match="no sign of life"):
        run.supervise()


def test_a_process_that_was_never_heard_of(run):
    run.processes[0].end(1)
    with pytest.raises(StageFailedError) as caught:
        run.supervise()
    assert (caught.value.stage, caught.value.task) == (0, "an unknown task")


def test_a_last_report_that_is_still_on_its_way_is_waited_for(run):
    """The others' heartbeats, which never end, do not keep it from being heard."""
    run.report("done", 0)
    run.processes[1].end(0)
    over = threading.Event()

    def say():
        for _ in range(8):
            run.report("beat", 0, doing="waiting", age=0.0)
            over.wait(0.02)
        run.report("done", 1)

    teller = threading.Thread(target=say)
    teller.start()
    run.supervise()
    teller.join()
    assert run.collector.is_complete


def test_the_others_heartbeats_do_not_keep_a_dead_stage_alive(run, monkeypatch):
    monkeypatch.setattr(supervisor, "_LAST_WORDS_SECONDS", 0.1)
    run.processes[1].end(-9)
    over = threading.Event()

    def say():
        while not over.wait(0.01):
            run.report("beat", 0, doing="waiting", age=0.0)

    teller = threading.Thread(target=say)
    teller.start()
    start = time.monotonic()
    try:
        with pytest.raises(StageFailedError, match="killed by signal 9"):
            run.supervise()
    finally:
        over.set()
        teller.join()
    assert time.monotonic() - start < 5


def test_a_stage_that_ended_after_its_report_is_no_failure(run):
    run.report("done", 0)
    run.processes[0].end(0)
    timer = threading.Timer(0.2, run.report, ("done", 1))
    timer.start()
    run.supervise()
    timer.join()


def test_a_stage_that_liveness_gives_up_is_raised(run):
    class GivesUp(Liveness):
        def problem(self, now):
            return Problem(1, "0.3F@1", "it has given no sign of life for 9 s")

    run.collector.liveness = GivesUp([0, 1], 0.0, 1.0, 1.0)
    run.report("beat", 0, doing="waiting", age=0.0)
    with pytest.raises(StageFailedError, match="no sign of life for 9 s") as caught:
        run.supervise()
    assert (caught.value.stage, caught.value.task) == (1, "0.3F@1")


class Noting(StageReports):
    """Remembers what whoever watches would be told."""

    def __init__(self, num_stages):
        super().__init__(num_stages)
        self.said = []

    def note(self, text):
        self.said.append(text)


def test_whoever_watches_is_told_of_a_silence(run):
    run.collector = Noting(2)
    run.collector.liveness = Liveness([0, 1], time.monotonic() - 12.0, 60.0, 60.0)
    run.report("beat", 0, doing="waiting", age=0.0)
    timers = [threading.Timer(1.2, run.report, ("done", stage)) for stage in (0, 1)]
    for timer in timers:
        timer.start()
    run.supervise()
    for timer in timers:
        timer.join()
    assert len(run.collector.said) in (1, 2)  # the beat may come behind the first look
    assert all(" s for stage " in said and "was at: start" in said for said in run.collector.said)


def test_a_wish_to_end_reaches_every_stage_at_once(run, monkeypatch):
    """Set in a signal's handler, it interrupts the wait for reports."""
    monkeypatch.setattr(supervisor, "_POLL_SECONDS", 30.0)

    def wish():
        run.stop.request(signal.SIGTERM)
        run.wakeup.set()
        while len(run.sent) < 2:
            time.sleep(0.005)
        for stage in (0, 1):
            run.report("done", stage)

    start = time.monotonic()
    teller = threading.Thread(target=wish)
    teller.start()
    run.supervise()
    teller.join()
    assert run.sent == [(stage, ControlMessage(HOLD)) for stage in (0, 1)]
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("data", [b"", b"\xc1", msgpack.packb(["done", 0]), msgpack.packb(7)])
def test_what_is_no_report_is_refused(run, data):
    with pytest.raises(TransportError, match="a report cannot be read"):
        read_report(data)
    run.outboxes[0].send(data)
    with pytest.raises(TransportError, match="a report cannot be read"):
        run.supervise()

"""A stage's reports and heartbeats over a real socket, read where the launcher reads them."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest
import zmq

from naspipe.wire import reports
from naspipe.wire.endpoints import ipc_endpoints
from naspipe.wire.reports import ZmqReporter, read_report
from naspipe.wire.transport import bind_inbox

SECONDS = 20.0
"""Deadline of every wait."""


@pytest.fixture
def launcher(tmp_path_factory):
    """An inbox, and the endpoints of a stage that reports to it."""
    with ExitStack() as stack:
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)
        endpoints = ipc_endpoints(tmp_path_factory.mktemp("s"), 3)
        yield bind_inbox(context, endpoints.launcher, endpoints), endpoints


def next_report(inbox):
    assert inbox.poll(SECONDS * 1000), "nothing came"
    return read_report(inbox.recv())


def test_reports_come_in_order_with_their_stage(launcher):
    inbox, endpoints = launcher
    with ZmqReporter(2, endpoints) as reporter:
        for y in range(5):
            reporter.report("loss", {"sequence_id": y, "loss": 0.1 * y, "bits": "3dcccccd"})
    for y in range(5):
        body = {"sequence_id": y, "loss": 0.1 * y, "bits": "3dcccccd"}
        assert next_report(inbox) == ("loss", 2, body)


def test_what_was_said_last_arrives_although_the_stage_ends_at_once(launcher):
    inbox, endpoints = launcher
    with ZmqReporter(0, endpoints) as reporter:
        reporter.report("failed", {"traceback": "x" * 1_000_000})
    kind, stage, body = next_report(inbox)
    assert (kind, stage, len(body["traceback"])) == ("failed", 0, 1_000_000)


def test_heartbeats_say_what_the_stage_is_at_and_for_how_long(launcher, monkeypatch):
    """Also while its own thread is busy."""
    monkeypatch.setattr(reports, "HEARTBEAT_SECONDS", 0.02)
    inbox, endpoints = launcher
    doing = ["first"]
    with ZmqReporter(1, endpoints) as reporter:
        reporter.watch(lambda: doing[0])
        beats = [beat_of(inbox, "first") for _ in range(4)]
        ages = [beat["age"] for beat in beats]
        assert ages == sorted(ages) and ages[-1] > ages[0]
        doing[0] = "second"
        beat = beat_of(inbox, "second")
        assert beat["age"] < ages[-1], "it counts from the change on"
    assert not [each for each in threading.enumerate() if each.name == "naspipe-heartbeat"]


def test_heartbeats_that_nobody_waits_for_keep_no_stage_from_ending(launcher, monkeypatch):
    """The launcher leaves as soon as it has heard the last report of every stage."""
    monkeypatch.setattr(reports, "HEARTBEAT_SECONDS", 0.02)
    inbox, endpoints = launcher
    with ZmqReporter(1, endpoints) as reporter:
        reporter.report("done", {})
        while next_report(inbox)[0] != "done":
            pass
        inbox.close(0)
        time.sleep(0.2)
        start = time.monotonic()
    assert time.monotonic() - start < 3


def beat_of(inbox, doing):
    """The next beat that says this."""
    while True:
        kind, stage, body = next_report(inbox)
        assert (kind, stage) == ("beat", 1)
        if body["doing"] == doing:
            return body

"""Who is given up, from heartbeats written by hand; and where a run that is to end is cut."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress

import pytest

from naspipe.config.errors import RunInterruptedError
from naspipe.launch.liveness import Liveness, Place, no_sign_of_life
from naspipe.launch.stopping import Stop, answered_signals, ended_by_signals
from naspipe.wire.messages import HOLD, STOP, ControlMessage, launcher_frames, read_message
from naspipe.wire.reports import WAITING


def watched(until, beats, silence=10.0, timeout=100.0):
    """Ask every second up to a time; ``beats`` of each stage: what it says at each second."""
    liveness = Liveness(range(len(beats)), 0.0, silence, timeout)
    for now in range(1, until + 1):
        for stage, say in enumerate(beats):
            if found := say(now):
                liveness.hear(stage, now, *found)
        if problem := liveness.problem(now):
            return now, problem
    return None


def waits(now):
    return WAITING, float(now)


def works(now):
    return f"task {now}", 0.0


def test_a_stage_that_is_silent_is_named_with_what_it_was_at():
    now, (stage, task, why, host) = watched(
        50, [waits, lambda now: works(now) if now < 20 else None]
    )
    assert (now, stage, task) == (30, 1, "task 19")
    assert why == f"no sign of life from {os.uname().nodename} for 11 s: stopped or starved"
    assert host == os.uname().nodename


def test_a_silent_stage_of_another_host_names_both_hosts():
    places = [Place("one", "10.0.0.1:29601"), Place("two", "10.0.0.2:29603")]
    liveness = Liveness([0, 1], 0.0, 10.0, 100.0, places)
    for now in range(1, 12):
        liveness.hear(0, now, WAITING, 0.0)
        problem = liveness.problem(now)
    assert problem.host == "two (rank 1, 10.0.0.2:29603)" and problem.why == (
        "no sign of life from two for 11 s: stopped, starved, or the network between one and two"
    )


def test_hosts_that_share_a_name_are_told_apart_by_their_addresses():
    places = [Place("one", "10.0.0.1:29601"), Place("one", "10.0.0.2:29603")]
    assert no_sign_of_life(*places, 31.0) == (
        "no sign of life from one for 31 s: stopped, starved, or the network between 10.0.0.2 and "
        "10.0.0.1"
    )
    assert no_sign_of_life(places[0], Place("one", "10.0.0.1:29603"), 31.0).endswith("starved")


def test_a_silence_is_said_once_until_the_stage_is_heard_again():
    """A host, which may share its name with others, by its rank and address, too."""
    places = [Place("one", "10.0.0.1:29601"), Place("one", "10.0.0.2:29603")]
    liveness = Liveness([0, 1], 0.0, 30.0, 100.0, places)
    said = {}
    for now in range(1, 60):
        liveness.hear(0, now, WAITING, 0.0)
        if now in (2, 30):
            liveness.hear(1, now, "0.3F@1 block 4", 0.0)
        assert liveness.problem(now) is None
        if lines := liveness.overdue(now):
            said[now] = lines
    line = (
        "waiting 11 s for rank 1 (one, 10.0.0.2:29603), which was at: 0.3F@1 block 4; it is given "
        "up after 30 s (silence_seconds)"
    )
    assert said == {13: [line], 41: [line]}
    alone = Liveness([0], 0.0, 30.0, 100.0)
    assert alone.overdue(11.0)[0].startswith(f"waiting 11 s for stage 0 ({os.uname().nodename})")


def test_a_stage_that_hangs_is_named_and_not_those_that_wait_for_it():
    hangs = lambda now: ("0.3F@1 block 4", float(max(0, now - 5)))  # noqa: E731
    now, (stage, task, why, _) = watched(200, [waits, hangs, waits])
    assert (now, stage, task) == (106, 1, "0.3F@1 block 4")
    assert "at this for 101 s" in why


def test_stages_that_work_or_have_ended_are_left_alone():
    assert watched(500, [waits, works]) is None
    liveness = Liveness([0, 1], 0.0, 10.0, 100.0)
    liveness.done(1)
    for now in range(1, 60):
        liveness.hear(0, now, "waiting", 0.0)
        liveness.hear(1, now, "late", 500.0)
        assert liveness.problem(now) is None
    assert liveness.doing(1) == ""


def test_nobody_is_blamed_for_the_time_that_the_launcher_stood_still():
    liveness = Liveness([0], 0.0, 10.0, 100.0)
    liveness.hear(0, 1.0, "x", 0.0)
    assert liveness.problem(1.0) is None
    assert liveness.problem(3600.0) is None  # the machine slept
    assert [now for now in range(3601, 3620) if liveness.problem(now)] == list(range(3611, 3620))


def test_a_stop_is_at_the_most_that_any_stage_has_admitted():
    sent = []
    stop = Stop(3, lambda stage, message: sent.append((stage, message)))
    stop.advance()
    assert sent == []
    stop.request(signal.SIGTERM)
    stop.advance()
    stop.advance()
    assert sent == [(stage, ControlMessage(HOLD)) for stage in range(3)]
    stop.held(1, [7, 3])
    stop.held(0, [9, 2])
    assert len(sent) == 3
    stop.held(2, [8, 4])
    assert sent[3:] == [(stage, ControlMessage(STOP, (9, 4))) for stage in range(3)]


def test_where_a_signal_came_from():
    """One of its own counts more than those that other hosts tell of."""
    stop = Stop(2, lambda stage, message: None)
    stop.request(signal.SIGTERM, from_elsewhere=True)
    assert stop.from_elsewhere
    stop.request(signal.SIGTERM)
    stop.request(signal.SIGTERM, from_elsewhere=True)
    assert not stop.from_elsewhere


def test_a_stage_that_ended_before_it_was_asked_counts():
    sent = []
    stop = Stop(2, lambda stage, message: sent.append(message))
    stop.held(0, [30])
    assert sent == []
    stop.request(signal.SIGINT)
    stop.advance()
    stop.held(1, [28])
    assert sent[-1] == ControlMessage(STOP, (30,))


@pytest.mark.parametrize("message", [ControlMessage(HOLD), ControlMessage(STOP, (3, 0))])
def test_control_messages_come_back(message):
    (header,) = launcher_frames(message)
    assert read_message(header, []) == message


def test_the_second_signal_ends_at_once_and_handlers_come_back():
    before, asked = signal.getsignal(signal.SIGTERM), []
    with pytest.raises(KeyboardInterrupt), answered_signals(asked.append):
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_leave_signals_alone():
    before, found = signal.getsignal(signal.SIGTERM), []

    def look():
        with answered_signals(lambda number: None):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [before]


class Dying:
    """Asks for the end of this process while Python drops whatever is raised."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def check_that_takes_all_for_faults():
    with suppress(Exception):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("plans", [check_that_takes_all_for_faults, Dying])
def test_a_signal_before_the_training_is_lost_nowhere(plans):
    """Neither a check that catches all exceptions nor a finalizer keeps it for itself."""
    before, hook = signal.getsignal(signal.SIGTERM), sys.unraisablehook
    told = pytest.raises(RunInterruptedError, match="by SIGTERM while it plans")
    with told as error, ended_by_signals("while it plans"):
        plans()
        time.sleep(20)
    assert error.value.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert sys.unraisablehook is hook

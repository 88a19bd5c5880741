"""Histories by hand: which of them hold a race."""

from __future__ import annotations

import pytest

from tests.happens_before.clocks import RaceError, Recorder, ToldDeque, ToldQueue


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def other(recorder):
    return recorder.actor("other")


def test_two_reads_are_no_race(recorder, other):
    recorder.access(0, 0, 8, False, "a")
    recorder.access(other, 0, 8, False, "b")


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_unordered_accesses_race_if_one_writes(recorder, other, first, second):
    recorder.access(0, 0, 8, first, "a")
    with pytest.raises(RaceError, match=r"'a' \(compute thread .*'b' \(other .*not ordered"):
        recorder.access(other, 7, 9, second, "b")
    with pytest.raises(RaceError):
        recorder.check()


def test_other_bytes_are_no_race(recorder, other):
    recorder.access(0, 0, 8, True, "a")
    recorder.access(other, 8, 600, True, "b")
    recorder.access(0, 600, 601, True, "c")


def test_what_was_told_is_before_what_is_done_after_learning_it(recorder, other):
    recorder.access(0, 0, 8, True, "a")
    told = recorder.tell()
    recorder.learn(told, other)
    recorder.access(other, 0, 8, True, "b")
    with pytest.raises(RaceError):
        recorder.access(0, 0, 8, False, "c")


def test_what_is_done_after_telling_is_not_told(recorder, other):
    told = recorder.tell()
    recorder.access(0, 0, 8, True, "a")
    recorder.learn(told, other)
    with pytest.raises(RaceError):
        recorder.access(other, 0, 8, False, "b")


def test_order_goes_on_over_a_third_one(recorder, other):
    third = recorder.actor("third")
    recorder.access(0, 0, 8, True, "a")
    recorder.learn(recorder.tell(), third)
    recorder.learn(recorder.tell(third), other)
    recorder.access(other, 0, 8, True, "b")


def test_a_read_hides_no_write_before_it(recorder, other):
    third = recorder.actor("third")
    recorder.access(0, 0, 8, True, "a")
    recorder.learn(recorder.tell(), other)
    recorder.access(other, 0, 8, False, "b")
    with pytest.raises(RaceError, match="'a'"):
        recorder.access(third, 0, 8, False, "c")


def test_a_write_of_a_part_hides_only_that_part(recorder, other):
    recorder.access(0, 0, 2000, True, "a")
    told = recorder.tell()
    recorder.access(0, 0, 1000, True, "b")
    recorder.learn(told, other)
    recorder.access(other, 1000, 1001, False, "c")
    with pytest.raises(RaceError, match="'b'"):
        recorder.access(other, 999, 1000, False, "d")


def test_queues_order_who_takes_behind_who_puts(recorder, other):
    queue, outcomes = ToldQueue(recorder), ToldDeque(recorder)
    recorder.access(0, 0, 8, True, "a")
    queue.put("job")
    with recorder.as_actor(other):
        assert queue.get() == "job" and queue.get() is None
        recorder.access(other, 0, 8, True, "b")
        outcomes.append("done")
    assert outcomes[0] == "done"
    assert outcomes.popleft() == "done"
    recorder.access(0, 0, 8, True, "c")

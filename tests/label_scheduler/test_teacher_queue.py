"""What is expected of one teacher."""

from __future__ import annotations

from naspipe.label_scheduler.label_table import Counts, TeacherQueue


def queue(pace: int = 10) -> TeacherQueue:
    return TeacherQueue("a", [pace], 3.0, Counts())


def deadlines(of: TeacherQueue) -> list[int]:
    return [each.deadline_ns for each in of.requests]


def test_deadlines_count_what_is_ahead() -> None:
    a = queue()
    a.ask(0, 100)
    a.ask(1, 105)
    assert deadlines(a) == [130, 140] and a.free_at_ns(105) == 120
    a.answered(0, 108)
    assert deadlines(a) == [138] and a.free_at_ns(108) == 118


def test_who_is_behind_its_time_is_taken_for_slow() -> None:
    a = queue()
    a.ask(0, 100)
    a.ask(1, 100)
    assert a.likely_pace_ns(125) == 25 and a.free_at_ns(125) == 150


def test_the_pace_is_the_median_of_three() -> None:
    a, now = queue(), 0
    paces = []
    for number, took in enumerate((12, 90, 13, 50, 50)):
        a.ask(number, now)
        now += took
        a.answered(number, now)
        paces.append(a.pace_ns)
    assert paces == [12, 12, 13, 50, 50]


def test_a_second_deadline_is_later_than_the_first() -> None:
    a = queue()
    a.ask(0, 0)
    a.miss(a.requests[0], 30)
    assert a.is_doubtful and deadlines(a) == [30 + 3 * 30]


def test_what_was_lost_is_forgotten_when_a_later_one_is_answered() -> None:
    """Answers come in the order of the requests. One that somebody waits for is kept."""
    a = queue()
    for batch in range(3):
        a.ask(batch, 0)
    a.miss(a.requests[0], 30)
    a.miss(a.requests[1], 40)
    a.requests[0].is_void = True
    assert a.load == 2
    a.answered(2, 50)
    assert [each.batch for each in a.requests] == [1] and not a.is_doubtful


def test_what_was_lost_keeps_its_deadline() -> None:
    a = queue()
    for batch in range(3):
        a.ask(batch, 0)
    assert deadlines(a) == [30, 40, 50]
    a.answered(1, 25)
    assert a.pace_ns == 25 and deadlines(a) == [30, 25 + 3 * 25]

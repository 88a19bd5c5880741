"""When one more teacher is needed, and when one is not."""

from __future__ import annotations

import pytest

from naspipe.label_scheduler.label_table import Counts, TeacherQueue
from naspipe.label_scheduler.scheduler import SECOND_NS, SchedulerSettings, Staffing
from tests.label_scheduler.scheduler_in_seconds import SchedulerInSeconds


def queue(name: str, seconds: float) -> TeacherQueue:
    return TeacherQueue(name, [round(seconds * SECOND_NS)], 3.0, Counts())


def spare(seconds: dict[str, float], used: int, *, now: float = 10.0, **settings: float):
    """The name of who goes after ``now`` seconds in which so many labels were used."""
    staffing = Staffing(SchedulerSettings(upper=4, lower=2, release_seconds=10, **settings))
    staffing.joined(SECOND_NS, 0)
    for _ in range(used):
        staffing.used()
    queues = [queue(name, each) for name, each in seconds.items()]
    found = staffing.spare(queues, round(now * SECOND_NS))
    return found and found.name


@pytest.mark.parametrize(
    ("seconds", "used", "name"),
    [
        ({"a": 1.0, "b": 1.0, "c": 2.0}, 18, "c"),
        ({"a": 1.0, "b": 1.0, "c": 2.0}, 19, None),
        ({"a": 1.0, "b": 1.0}, 9, "b"),
        ({"a": 1.0}, 9, None),
        ({"a": 1.0, "b": 1.0}, 3, None),
    ],
    ids=["others 1.1 times as fast", "less", "the last by name", "the only one", "few labels"],
)
def test_the_slowest_goes_where_the_others_are_enough(seconds, used, name) -> None:
    assert spare(seconds, used) == name


def test_only_after_long() -> None:
    both = {"a": 1.0, "b": 1.0}
    assert spare(both, 5, now=9.9) is None and spare(both, 5) == "b"


def test_a_time_in_which_the_student_ran_dry_does_not_count() -> None:
    staffing = Staffing(SchedulerSettings(upper=4, lower=2, release_seconds=10))
    for _ in range(9):
        staffing.used()
    staffing.is_hiring(2, 5 * SECOND_NS)
    queues = [queue("a", 1.0), queue("b", 1.0)]
    assert staffing.spare(queues, 14 * SECOND_NS) is None
    for _ in range(4):
        staffing.used()
    assert staffing.spare(queues, 15 * SECOND_NS) is not None


def test_one_more_is_hired_when_the_student_runs_dry() -> None:
    at = SchedulerInSeconds(load_seconds=10, last_batch=9)
    assert at.wants(0, 0) == ["hire 1"]
    assert at.due == 10 and at.ticks(9) == []
    assert at.ticks(10) == ["hire 1"], "nobody came"
    at.joins(11, "a", 1.0)
    assert at.due == 13, "its effect is waited for"
    at.answers(12, "a", 0)
    at.uses(12.5, 0)
    assert at.wants(12.6, 1) == []
    assert at.ticks(13) == ["hire 1"]


def test_no_more_than_the_most_are_hired() -> None:
    at = SchedulerInSeconds(most=1)
    at.joins(0, "a", 1.0)
    at.ticks(3)
    at.ticks(4)
    assert at.wants(5, 0) == [] and at.scheduler.first_missing == 0


def run_a_and_b(release_seconds: float) -> list[str]:
    """A student that takes 2 s a label; a and b make one in 1 s each; what is said, and when."""
    at = SchedulerInSeconds(upper=8, lower=6, release_seconds=release_seconds)
    said: list[str] = []
    busy: dict[str, list[int]] = {"a": [], "b": []}

    def note(second: int, words: list[str]) -> None:
        for word in words:
            name, *rest = word.split()
            if name == "ask":
                busy[rest[0]].append(int(rest[1]))
            elif name != "deliver":
                said.append(f"{word} at {second}")

    note(0, at.joins(0, "a"))
    note(0, at.joins(0, "b"))
    for second in range(1, 41):
        for teacher, batches in busy.items():
            if batches:
                note(second, at.answers(second, teacher, batches.pop(0)))
        if second % 2 == 0:
            at.wants(second, second // 2 - 1)
            note(second, at.uses(second, second // 2 - 1))
    return said


def test_the_scheduler_releases_what_is_idle() -> None:
    assert run_a_and_b(16) == ["release b at 17"], "chosen at 16, when it had work"
    assert run_a_and_b(0) == []


def leaving() -> SchedulerInSeconds:
    """A scheduler of which b is about to go, with one request under way."""
    at = SchedulerInSeconds(last_batch=5, upper=4, lower=3, requests=1)
    at.joins(0, "a")
    at.joins(0, "b")
    at.scheduler._queues["b"].is_leaving = True
    return at


def test_one_that_leaves_is_asked_nothing_and_goes_when_it_is_idle() -> None:
    at = leaving()
    assert at.answers(1, "a", 0) == ["deliver 0 a", "ask a 2"]
    assert at.answers(1.2, "b", 1) == ["deliver 1 b", "release b"], "it would have 3 before a"
    assert at.scheduler.teachers == ("a",)


def test_one_that_leaves_stays_where_the_student_runs_dry() -> None:
    at = leaving()
    assert at.wants(0.5, 0) == []
    assert at.answers(1, "b", 1) == ["deliver 1 b", "ask b 3"]

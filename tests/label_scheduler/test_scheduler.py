"""One example for each rule of the scheduler."""

from __future__ import annotations

import pytest

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.label_scheduler.scheduler import SchedulerSettings
from tests.label_scheduler.scheduler_in_seconds import SchedulerInSeconds


def served(at: SchedulerInSeconds, teacher: str, batch: int, seconds: float) -> list[str]:
    """An answer, and what is wanted besides the label's delivery."""
    first, *rest = at.answers(seconds, teacher, batch)
    assert first == f"deliver {batch} {teacher}"
    return rest


def test_a_teacher_has_two_requests_under_way() -> None:
    at = SchedulerInSeconds()
    assert at.joins(0, "a") == ["ask a 0", "ask a 1"]
    assert served(at, "a", 0, 1.0) == ["ask a 2"]
    assert served(at, "a", 1, 2.0) == ["ask a 3"]


def test_labels_are_asked_for_up_to_upper_and_again_from_lower_on() -> None:
    at = SchedulerInSeconds(upper=4, lower=1)
    at.joins(0, "a")
    asked = [served(at, "a", batch, batch + 1.0) for batch in range(4)]
    assert asked == [["ask a 2"], ["ask a 3"], [], []] and at.scheduler.num_held == 4
    for batch in range(2):
        at.wants(5, batch)
        assert at.uses(5, batch) == []
    at.wants(6, 2)
    assert at.uses(6, 2) == ["ask a 4", "ask a 5"]
    assert at.scheduler.num_labels == 3


def test_what_is_wanted_beyond_is_asked_for_above_lower() -> None:
    """A step of four passes may use none of its labels before it has all."""
    at = SchedulerInSeconds(upper=5, lower=1)
    at.joins(0, "a")
    for batch in range(5):
        served(at, "a", batch, batch + 1.0)
    for batch in range(3):
        assert at.uses(6, batch) == []
    for batch in (3, 4):
        assert at.wants(7, batch) == []
    assert at.wants(7, 5) == ["ask a 5", "ask a 6"]


def test_nothing_is_asked_beyond_the_last_batch() -> None:
    at = SchedulerInSeconds(first_batch=10, last_batch=11, requests=4)
    assert at.joins(0, "a") == ["ask a 10", "ask a 11"]
    assert at.joins(0, "b") == []


def test_the_one_that_is_expected_first_is_asked() -> None:
    """The slow one gets batch 4: both would have it after 5 s, and its name is first."""
    at = SchedulerInSeconds(upper=16)
    assert at.joins(0, "slow", 5.5) == ["ask slow 0", "ask slow 1"]
    at = SchedulerInSeconds(upper=16)
    assert at.joins(0, "z_fast", 1.0) == ["ask z_fast 0", "ask z_fast 1"]
    assert at.joins(0, "slow", 5.0) == ["ask slow 4", "ask slow 10"]


def test_a_full_fast_teacher_is_waited_for() -> None:
    at = SchedulerInSeconds(last_batch=2)
    at.joins(0, "fast", 1.0)
    assert at.joins(0, "slow", 5.0) == []
    assert served(at, "fast", 0, 1.0) == ["ask fast 2"]
    assert at.scheduler.counts["slow"].asked == 0


def test_teachers_alike_are_asked_in_turn_by_name() -> None:
    at = SchedulerInSeconds()
    at.joins(0, "b")
    assert at.joins(0, "a") == ["ask a 2", "ask a 3"]
    at = SchedulerInSeconds(requests=1, last_batch=1)
    at.joins(0, "b")
    assert at.joins(0, "a") == ["ask a 1"]


def test_another_is_asked_at_the_deadline_once() -> None:
    at = SchedulerInSeconds(last_batch=0)
    at.joins(0, "a", 1.0)
    at.joins(0, "b", 2.0)
    assert at.due == 3.0
    assert at.ticks(2.999) == []
    assert at.ticks(3.0) == ["ask b 0"]
    assert at.ticks(3.5) == [] and at.scheduler.counts["b"].repeated == 1
    assert at.answers(4, "b", 0) == ["deliver 0 b"]
    assert at.answers(5, "a", 0) == ["drop a 0"]
    assert at.scheduler.counts["a"].missed == at.scheduler.counts["a"].dropped == 1


def test_what_is_queued_ahead_counts_in_a_deadline() -> None:
    at = SchedulerInSeconds(last_batch=1)
    at.joins(0, "a", 1.0)
    at.joins(0, "b", 10.0)
    assert at.ticks(3) == ["ask b 0"]
    assert at.due == 4.0, "1 s for the one ahead, and three times 1 s"
    assert at.ticks(4) == ["ask b 1"]


def test_deadlines_follow_the_measured_time() -> None:
    at = SchedulerInSeconds(requests=1)
    at.joins(0, "a", 1.0)
    for number in range(3):
        served(at, "a", number, 2.0 * (number + 1))
    assert at.due == 6.0 + 3 * 2.0


def test_one_stall_is_not_believed() -> None:
    at = SchedulerInSeconds(requests=1, upper=16)
    at.joins(0, "a", 1.0)
    served(at, "a", 0, 1.0)
    served(at, "a", 1, 2.0)
    served(at, "a", 2, 4.9)
    assert at.due == pytest.approx(7.9)


def test_a_late_teacher_gets_nothing_until_it_answers() -> None:
    at = SchedulerInSeconds(requests=1, upper=16, lower=8)
    at.joins(0, "a", 1.0)
    at.joins(0, "b", 1.5)
    at.ticks(3)
    assert served(at, "b", 1, 3.1) == ["ask b 0"]
    assert served(at, "b", 0, 4.5) == ["ask b 2"], "a has room, and is late"
    assert at.answers(5, "a", 0) == ["drop a 0", "ask a 5"], "it takes 5 s, as b does for four"


def test_the_only_teacher_is_asked_again() -> None:
    """Its request may be lost; the next deadline is later each time."""
    at = SchedulerInSeconds(last_batch=0)
    at.joins(0, "a", 1.0)
    assert at.ticks(3) == ["ask a 0"]
    assert at.due == 12
    assert at.ticks(12) == ["ask a 0"]
    assert at.joins(13, "b") == ["ask b 0"]
    assert at.answers(14, "b", 0) == ["deliver 0 b"]
    assert at.due is None


def test_teachers_that_are_all_full_and_late_are_asked_again() -> None:
    at = SchedulerInSeconds(last_batch=1, requests=1)
    at.joins(0, "a", 1.0)
    at.joins(0, "b", 1.0)
    assert at.ticks(3) == []
    assert at.ticks(12) == ["ask a 0", "ask b 1"]


def test_batches_of_one_that_left_are_dealt_again() -> None:
    at = SchedulerInSeconds(upper=3, lower=0)
    at.joins(0, "a")
    assert at.joins(0, "b") == ["ask b 2"]
    assert at.leaves(0.5, "a") == ["ask b 0"], "although so many labels stop asking ahead"
    assert served(at, "b", 2, 1.0) == ["ask b 1"]
    assert at.answers(1.5, "a", 0) == ["deliver 0 a"], "a label is right, whoever brings it late"


def test_one_that_joins_under_its_old_name_is_a_new_one() -> None:
    at = SchedulerInSeconds(last_batch=0)
    at.joins(0, "a", 1.0)
    assert at.joins(1, "a", 2.0) == ["ask a 0"]
    assert at.due == 1 + 6


def test_answers_never_asked_for_are_dropped() -> None:
    at = SchedulerInSeconds(last_batch=1, requests=1)
    at.joins(0, "a")
    at.joins(0, "b")
    assert at.answers(0.5, "b", 0) == ["drop b 0"] and at.scheduler.counts["b"].dropped == 1
    assert at.answers(0.5, "nobody", 0) == ["drop nobody 0"]
    assert at.answers(0.5, "a", 7) == ["drop a 7"]
    assert at.answers(1, "a", 0) == ["deliver 0 a"]
    assert at.answers(1, "a", 0) == ["drop a 0"]
    at.uses(2, 0)
    assert at.answers(2, "a", 0) == ["drop a 0"]


def test_what_one_refuses_another_makes() -> None:
    at = SchedulerInSeconds(last_batch=0)
    at.joins(0, "a")
    assert at.refuses(1, "a", 0) == []
    assert at.joins(2, "b") == ["ask b 0"]
    assert at.refuses(3, "b", 0) == [], "nobody is left, and nobody is asked twice"
    assert at.scheduler.counts["a"].refused == 1
    assert at.joins(4, "a") == ["ask a 0"]


def test_a_doubtful_one_makes_what_all_others_refuse() -> None:
    at = SchedulerInSeconds(last_batch=1, requests=1)
    at.joins(0, "a")
    at.joins(0, "b")
    assert at.refuses(1, "a", 0) == []
    assert at.answers(1, "b", 1) == ["deliver 1 b", "ask b 0"]
    assert at.refuses(2, "b", 0) == []
    at = SchedulerInSeconds(last_batch=2, requests=1)
    at.joins(0, "a")
    at.joins(0, "b")
    assert at.refuses(1, "a", 0) == []
    assert at.refuses(1, "b", 1) == ["ask b 0", "ask a 1"], "nobody is left who refused nothing"
    assert at.answers(2, "a", 1) == ["deliver 1 a", "ask a 2"]
    assert at.refuses(2.5, "a", 2) == []
    assert at.answers(3, "b", 0) == ["deliver 0 b", "ask b 2"]


def test_the_last_resort_is_one_that_is_doubtful() -> None:
    at = SchedulerInSeconds(last_batch=2, requests=1)
    at.joins(0, "a")
    at.joins(0, "b")
    assert at.refuses(1, "b", 1) == []
    assert at.refuses(1, "a", 0) == ["ask b 0", "ask a 1"]
    assert at.answers(2, "a", 1) == ["deliver 1 a", "ask a 2"]
    at.leaves(2.1, "b")
    assert at.joins(2.1, "c") == ["ask c 0"]
    assert at.refuses(2.2, "c", 0) == []
    assert at.joins(2.3, "b") == ["ask b 0"]


def test_unequal_bits_of_a_repeated_label_are_a_conflict() -> None:
    at = SchedulerInSeconds(last_batch=0)
    at.joins(0, "a", 1.0)
    at.joins(0, "b", 2.0)
    at.ticks(3)
    assert at.answers(4, "b", 0, "one") == ["deliver 0 b"]
    assert at.answers(5, "a", 0, "two") == ["conflict 0 b a"]


def test_nothing_is_kept_of_what_is_gone() -> None:
    at = SchedulerInSeconds()
    at.joins(0, "a")
    for batch in range(300):
        served(at, "a", batch, batch + 1.0)
        if batch % 2:  # the later one is used first
            at.uses(batch + 1.0, batch)
            at.uses(batch + 1.0, batch - 1)
    table = at.scheduler._table
    assert at.scheduler.num_labels <= 8 and not table._gone and not table._missing
    assert len(at.scheduler._queues["a"].requests) == 2


def test_the_first_missing_label_is_known() -> None:
    at = SchedulerInSeconds(requests=4)
    at.joins(0, "a")
    for batch in (2, 1, 3):
        at.wants(0, batch)
    assert at.scheduler.first_missing == 1
    at.answers(1, "a", 1)
    assert at.scheduler.first_missing == 2


@pytest.mark.parametrize(
    ("tell", "text"),
    [
        (lambda at: at.ticks(-1), "expected a time"),
        (lambda at: at.wants(0, 2), "expected 3 to 9"),
        (lambda at: at.wants(0, 10), "expected 3 to 9"),
        (lambda at: at.uses(0, 3), "label 3 was used, which was not delivered"),
        (lambda at: [at.answers(1, "a", 3), at.uses(1, 3), at.wants(1, 3)], "used before"),
    ],
)
def test_events_that_cannot_be(tell, text) -> None:
    at = SchedulerInSeconds(first_batch=3, last_batch=9)
    at.joins(0, "a")
    with pytest.raises(InvariantError, match=text):
        tell(at)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lower": 64}, "expected lower to be 0 or more and less than upper=64, found 64"),
        ({"upper": 0}, "expected upper to be 1 or more, found 0"),
        ({"deadline_factor": 1.0}, "expected deadline_factor to be more than 1"),
        ({"deadline_factor": float("nan")}, "expected deadline_factor to be more than 1"),
        ({"audit": -1}, "expected audit"),
        ({"most": 0}, "expected most"),
        ({"requests": 0}, "expected requests"),
        ({"first_batch": 5, "last_batch": 3}, "expected last_batch to be 4 or more, found 3"),
    ],
)
def test_settings_that_cannot_be(settings, text) -> None:
    with pytest.raises(ConfigError, match=text):
        SchedulerSettings(**settings)

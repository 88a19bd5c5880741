"""Labels that two teachers make."""

from __future__ import annotations

from naspipe.label_scheduler.scheduler import is_audited
from tests.label_scheduler.scheduler_in_seconds import SchedulerInSeconds

AUDITED = next(seed for seed in range(99) if is_audited(seed, 0, 4) and not is_audited(seed, 1, 4))


def audit(**settings: object) -> SchedulerInSeconds:
    return SchedulerInSeconds(AUDITED, audit=4, **{"last_batch": 0, **settings})


def test_an_audited_label_is_made_twice() -> None:
    at = audit()
    assert at.joins(0, "a") == ["ask a 0"]
    assert at.joins(0, "b") == ["ask b 0"]
    assert at.answers(1, "b", 0) == []
    assert at.answers(2, "a", 0) == ["deliver 0 b"]
    counts = at.scheduler.counts
    assert counts["a"].audited == counts["b"].audited == 1
    assert counts["a"].repeated == counts["b"].repeated == at.scheduler.audits_missed == 0


def test_unequal_bits_in_an_audit_are_a_conflict() -> None:
    at = audit()
    at.joins(0, "a")
    at.joins(0, "b")
    assert at.answers(1, "b", 0, "one") == []
    assert at.answers(2, "a", 0, "two") == ["conflict 0 b a"]
    assert at.due is None and at.scheduler.num_held == 0


def test_where_nobody_else_is_an_audit_is_missed_at_once() -> None:
    at = audit(requests=1)
    at.joins(0, "a", 1.0)
    assert at.answers(1, "a", 0) == ["deliver 0 a"]
    assert at.scheduler.audits_missed == 1 and at.scheduler.counts["a"].audited == 0


def test_an_audit_waits_a_deadline_for_another_one() -> None:
    at = audit(requests=1)
    at.joins(0, "a", 1.0)
    at.joins(0, "b", 1.0)
    assert at.answers(1, "a", 0) == []
    at.ticks(3)
    assert at.scheduler.audits_missed == 0
    assert "deliver 0 a" in at.ticks(4)
    assert at.scheduler.audits_missed == 1 and at.scheduler.counts["a"].audited == 0


def test_the_second_of_an_audit_may_be_late() -> None:
    at = audit(requests=1)
    at.joins(0, "a", 1.0)
    at.joins(0, "b", 1.0)
    at.answers(1, "a", 0)
    assert at.joins(1, "c", 1.0) == []
    assert at.ticks(3) == ["ask c 0"]
    assert at.answers(4, "c", 0) == ["deliver 0 a"]


def test_audits_are_drawn_by_key() -> None:
    drawn = [batch for batch in range(6400) if is_audited(5, batch, 64)]
    assert 70 < len(drawn) < 130
    assert drawn == [batch for batch in range(6400) if is_audited(5, batch, 64)]
    assert drawn != [batch for batch in range(6400) if is_audited(6, batch, 64)]
    assert not any(is_audited(5, batch, 0) for batch in range(99))
    assert all(is_audited(5, batch, 1) for batch in range(99))

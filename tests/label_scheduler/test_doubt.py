"""Which labels may be wrong behind the last one that was looked at."""

from __future__ import annotations

from naspipe.label_scheduler import balance
from naspipe.label_scheduler.balance import Doubt


def made(found, *batches, teacher="a"):
    for batch in batches:
        found.answered(batch, teacher)
        found.delivered(batch, [teacher])


def agreed(found, batch, *teachers):
    for teacher in teachers:
        found.answered(batch, teacher)
    found.delivered(batch, teachers)


def test_what_was_made_since_the_last_agreement():
    found = Doubt()
    made(found, 0, 1, 2)
    assert found.since("a", 9) == 0 and found.since("b", 9) == 9
    agreed(found, 3, "a", "b")
    assert found.since("a", 9) == 9
    made(found, 6, 5)
    made(found, 4, teacher="b")
    assert (found.since("a", 9), found.since("b", 9)) == (5, 4)


def test_what_was_made_behind_an_answer_that_waits_for_another_one():
    """The other's answer came late; it says nothing of what was made in the meantime."""
    found = Doubt()
    found.answered(3, "a")
    made(found, 4, 5)
    found.answered(3, "b")
    found.delivered(3, ["a", "b"])
    assert found.since("a", 9) == 4 and found.since("b", 9) == 9


def test_old_labels_are_known_by_the_lowest(monkeypatch):
    monkeypatch.setattr(balance, "_KEPT", 2)
    found = Doubt()
    found.answered(90, "a")
    made(found, 7, 1, 8, 9)
    assert found.since("a", 99) == 1
    found.answered(90, "b")
    found.delivered(90, ["a", "b"])
    assert found.since("a", 99) == 1  # made behind 90
    agreed(found, 10, "a", "b")
    assert found.since("a", 99) == 99

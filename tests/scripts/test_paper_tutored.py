"""Teachers that come and go on the virtual clock: rates, deaths, bounds, and no deadlock."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.label_scheduler.scheduler import SchedulerSettings, is_audited
from scripts.paper.edl import busy_share
from scripts.paper.tutored import simulate_tutored
from scripts.paper.tutored_script import (
    Joins,
    Leaves,
    Loses,
    Slows,
    Spare,
    Spoils,
    TutoredOutcome,
    TutoredScript,
)
from tests.thinned import long

STEP = 1 / 4.8
"""Seconds of a step, where a teacher takes 1 s: five teachers are needed."""


def script(teachers: int, *lives, steps: int = 600, **more) -> TutoredScript:
    joining = [Joins(0.0, f"t{number}", 1.0) for number in range(teachers)]
    return TutoredScript(step_seconds=STEP, steps=steps, lives=[*joining, *lives], **more)


def checked(asked: TutoredScript) -> TutoredOutcome:
    """Run it: every label is delivered and used once, in order, and bounds hold."""
    outcome = simulate_tutored(asked)
    assert outcome.most_labels <= asked.settings.upper
    for name in asked.students:
        assert outcome.used[name] == list(range(asked.steps))
        assert sorted(outcome.delivered[name]) == outcome.used[name]
    return outcome


def share(asked: TutoredScript) -> float:
    return checked(asked).busy_share(asked)


@pytest.mark.parametrize("upper", [16, 64])
@pytest.mark.parametrize("teachers", range(1, 9))
def test_the_rate_is_that_of_the_law(teachers, upper) -> None:
    asked = script(teachers, settings=SchedulerSettings(upper=upper, lower=upper // 2))
    assert share(asked) == pytest.approx(busy_share(teachers, 4.8, 1.0), rel=0.03)


@pytest.mark.parametrize("teachers", [3, 5, 6])
def test_so_it_is_with_uneven_times(teachers) -> None:
    asked = script(teachers, jitter=0.3, seed=5)
    enough = share(script(12, jitter=0.3, seed=5))
    assert share(asked) == pytest.approx(busy_share(teachers, 4.8, 1.0) * enough, rel=0.03)


UNDISTURBED = 0.985
"""Of six teachers: all but the first second."""


def test_six_undisturbed() -> None:
    outcome = checked(script(6))
    assert outcome.busy_share(script(6)) == pytest.approx(UNDISTURBED, abs=0.002)
    assert outcome.repeated == 0 and outcome.most_held > 50


@pytest.mark.parametrize("at", [3.0, 5.0, 30.0, 30.3, 60.7])
@pytest.mark.parametrize("ttl", [6, 60])
@pytest.mark.parametrize("upper", [16, 64])
def test_a_death_costs_little(at, ttl, upper) -> None:
    """Its two labels are asked of others at their deadlines, whenever it is missed."""
    asked = script(
        6, Leaves(at, "t3", ttl * STEP), settings=SchedulerSettings(upper=upper, lower=upper // 2)
    )
    outcome = checked(asked)
    assert outcome.busy_share(asked) >= 0.97 * UNDISTURBED
    assert outcome.repeated == 2


@pytest.mark.parametrize(
    "slow",
    [Joins(0.0, "t5", 5.0), Slows(30.0, "t5", 5.0), Slows(60.4, "t5", 5.0), Slows(99.0, "t5", 5.0)],
)
@pytest.mark.parametrize("upper", [32, 64])
def test_a_slow_one_of_six_costs_little(slow, upper) -> None:
    others = [slow] if isinstance(slow, Joins) else [Joins(0.0, "t5", 1.0), slow]
    asked = script(5, *others, settings=SchedulerSettings(upper=upper, lower=upper * 3 // 4))
    assert share(asked) >= 0.97 * UNDISTURBED


def test_a_stall_is_forgiven() -> None:
    """One that was stopped for 20 s is used again as if nothing had been."""
    asked = script(5, Slows(30.0, "t2", 20.0), Slows(30.9, "t2", 1.0))
    outcome = checked(asked)
    late = [each for each in outcome.asked if each.teacher == "t2" and each.at_seconds > 60]
    assert len(late) > 50


@pytest.mark.parametrize("upper", [1, 2, 5, 12, 200])
def test_never_more_than_upper(upper) -> None:
    outcome = checked(script(10, settings=SchedulerSettings(upper=upper, lower=upper // 2)))
    assert outcome.most_labels == upper


def repeats_without_a_deadline(asked: TutoredScript, outcome: TutoredOutcome) -> int:
    """Labels asked again sooner than the fastest teacher's deadline behind an earlier request.

    Those whose teacher left, or joined anew, meanwhile are not counted.
    """
    fastest = min(life.batch_seconds for life in asked.lives if isinstance(life, Joins | Slows))
    fastest *= 1 - asked.jitter
    changes = defaultdict(list)
    for life in asked.lives:
        if isinstance(life, Joins | Leaves):
            changes[life.teacher].append(life.at_seconds + getattr(life, "ttl_seconds", 0.0))
    requests = defaultdict(list)
    for each in outcome.asked:
        requests[each.student, each.batch].append(each)
    too_soon = 0
    for (_, batch), some in requests.items():
        copies = 1 + is_audited(asked.seed, batch, asked.settings.audit)
        for later, earlier in zip(some[copies:], some, strict=False):
            begin, end = earlier.at_seconds, later.at_seconds
            if not any(begin - 1e-6 <= at <= end + 1e-6 for at in changes[earlier.teacher]):
                too_soon += end - begin < asked.settings.deadline_factor * fastest
    return too_soon


@pytest.mark.parametrize("audit", [0, 16])
def test_no_duplicate_without_a_missed_deadline(audit) -> None:
    usual = SchedulerSettings(audit=audit)
    fast = checked(script(6, settings=usual, jitter=0.5))
    assert fast.repeated == 0
    asked = script(6, Slows(30.0, "t1", 9.0), Loses(50.0, "t2"), settings=usual)
    outcome = checked(asked)
    assert outcome.repeated >= 3 and repeats_without_a_deadline(asked, outcome) == 0


@pytest.mark.parametrize("audit", [4, 64])
def test_audits_cost_their_share(audit) -> None:
    """Four teachers are not enough, so that every label counts."""
    asked = script(4, settings=SchedulerSettings(audit=audit))
    outcome = checked(asked)
    drawn = sum(is_audited(0, batch, audit) for batch in range(600))
    assert sum(each.audited for each in outcome.counts["student"].values()) == 2 * drawn
    assert outcome.audits_missed == 0
    law = busy_share(4, 4.8, 1.0) * 600 / (600 + drawn)
    assert outcome.busy_share(asked) == pytest.approx(law, rel=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_one_that_goes_bad_is_found(seed) -> None:
    asked = script(5, Spoils(30.0, "t2"), settings=SchedulerSettings(audit=8), seed=seed)
    outcome = simulate_tutored(asked)
    assert outcome.conflict is not None and "t2" in outcome.conflict.teachers
    made = [e for e in outcome.asked if e.teacher == "t2" and e.at_seconds > 30]
    assert len(made) <= 2 * 8 * 5


def test_the_only_teacher_may_lose_what_it_was_asked_for() -> None:
    asked = script(1, Loses(10.5, "t0"), steps=40)
    assert checked(asked).seconds["student"] == pytest.approx(43.5, abs=1)


def test_teachers_are_hired_until_they_are_enough_and_no_more() -> None:
    spares = [Spare(f"spare{number}", 1.0) for number in range(12)]
    asked = script(
        0, steps=2000, spares=spares, load_seconds=3.0, settings=SchedulerSettings(load_seconds=5.0)
    )
    outcome = checked(asked)
    assert len(outcome.hired) == 5
    gaps = [later - first for first, later in zip(outcome.hired, outcome.hired[1:], strict=False)]
    assert min(gaps) >= 3.0 + 1.0, "its load, and a batch"
    few = script(0, steps=200, spares=spares, settings=SchedulerSettings(most=2))
    assert len(checked(few).hired) == 2


def test_teachers_that_are_not_needed_go() -> None:
    """Ten are there, and six would do with a margin; the student loses nothing."""
    asked = script(10, steps=4000, settings=SchedulerSettings(release_seconds=60.0))
    outcome = checked(asked)
    gone = [name for _, name in outcome.released]
    assert len(gone) == 4 and len(set(gone)) == 4
    assert outcome.busy_share(asked) > 0.99 and len(outcome.hired) <= 1


def test_several_students_share_their_teachers() -> None:
    names = ("x", "y", "z")
    for teachers in (3, 9, 16):
        asked = script(teachers, students=names, steps=300)
        law = busy_share(teachers // 3, 4.8, 1.0)
        assert share(asked) == pytest.approx(law, rel=0.03), teachers
    two = script(2, students=names, steps=100)
    assert 0.5 * busy_share(1, 4.8, 1.0) < share(two) < busy_share(2, 3 * 4.8, 1.0)


def test_students_that_step_together() -> None:
    asked = script(16, students=("x", "y", "z"), steps=300, is_joined=True)
    outcome = checked(asked)
    ends = set(outcome.seconds.values())
    assert len(ends) == 1 and outcome.busy_share(asked) > 0.95


def test_teachers_of_one_student_serve_the_others_when_it_ends() -> None:
    """With two for each of two; of one that lost both, the other keeps working."""
    asked = script(4, Leaves(20.0, "t0"), Leaves(20.0, "t1"), students=("x", "y"), steps=100)
    outcome = checked(asked)
    served = Counter(each.student for each in outcome.asked if each.at_seconds > 22)
    assert min(served.values()) > 20


LIFE = st.sampled_from(["joins", "leaves", "slows", "loses"])


@st.composite
def scripts(draw, steps=200):
    lives, at = [], 0.0
    for _ in range(draw(st.integers(0, 25))):
        at += draw(st.sampled_from((0.0, 0.3, 1.0, 4.0)))
        name = f"t{draw(st.integers(0, 3))}"
        seconds = draw(st.sampled_from((0.1, 0.5, 1.0, 5.0)))
        lives.append(
            {
                "joins": Joins(at, name, seconds),
                "leaves": Leaves(at, name, draw(st.sampled_from((0.0, 1.0, 20.0)))),
                "slows": Slows(at, name, seconds),
                "loses": Loses(at, name),
            }[draw(LIFE)]
        )
    upper = draw(st.integers(1, 20))
    return TutoredScript(
        step_seconds=STEP,
        steps=steps,
        lives=[*lives, Joins(at, "last", 0.5)],
        settings=SchedulerSettings(
            upper=upper,
            lower=draw(st.integers(0, upper - 1)),
            requests=draw(st.integers(1, 3)),
            audit=draw(st.sampled_from((0, 0, 3))),
            release_seconds=draw(st.sampled_from((0.0, 10.0))),
            load_seconds=2.0,
        ),
        students=("x", "y")[: draw(st.integers(1, 2))],
        window=draw(st.integers(1, 8)),
        is_joined=draw(st.booleans()),
        jitter=draw(st.sampled_from((0.0, 0.4))),
        seed=draw(st.integers(0, 3)),
    )


@settings(max_examples=60)
@given(scripts())
def test_any_lives_end_with_every_label_once(asked) -> None:
    checked(asked)


@pytest.mark.parametrize("seed", [0, long(1)])
def test_ten_thousand_steps_of_random_lives(seed) -> None:
    drawn = random.Random(seed)
    lives, at = [], 0.0
    while at < 10_000 * STEP:
        at += drawn.expovariate(0.3)
        name, seconds = f"t{drawn.randrange(8)}", drawn.choice((0.5, 1.0, 1.0, 3.0))
        lives.append(
            drawn.choice(
                (Joins(at, name, seconds), Joins(at, name, seconds), Slows(at, name, seconds),
                 Leaves(at, name, drawn.choice((0.0, 2.0, 12.0))), Loses(at, name))
            )
        )  # fmt: skip
    asked = script(4, *lives, Joins(at, "last", 1.0), steps=10_000, jitter=0.2, seed=seed,
                   settings=SchedulerSettings(audit=64))  # fmt: skip
    assert repeats_without_a_deadline(asked, checked(asked)) == 0


def test_the_same_script_gives_the_same_run() -> None:
    asked = script(4, Leaves(9.0, "t1", 3.0), Joins(20.0, "t1", 2.0), jitter=0.3, steps=200)
    assert simulate_tutored(asked) == simulate_tutored(asked)

"""Several groups share the teachers of a run evenly; none is without, and the bits are the same."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

import naspipe as npp
from naspipe.distill.admission_check import share_of
from naspipe.distill.teacher_card import TeacherCard
from naspipe.store.teacher_events import read_teacher_events, teacher_events_file
from tests.distill.servers import free_port
from tests.equivalence.harness import assert_same_bits
from tests.equivalence.test_teachers import network, plain_loop, train
from tests.faults.other_teachers import (
    QUICK,
    SLOW,
    elsewhere,
    meanwhile,
    of_registry,
    teacher_pids,
)
from tests.thinned import long

PASSES = "accumulate:4"


def served(run, group):
    """Who served a group at the end, and how many labels each teacher made for it."""
    path = teacher_events_file(run.directory.path, group)
    events = [json.loads(line) for line in Path(path).read_text().splitlines()]
    there = set()
    for event in events:
        if event["event"] == "joined":
            there.add(event["teacher"])
        elif event["event"] in ("left", "moved", "dismissed"):
            there.discard(event["teacher"])
    answered = {e["teacher"]: e["answered"] for e in events if e["event"] == "counts"}
    return there, answered


@pytest.mark.parametrize(("teachers", "shares"), [long(1, (1, 1)), long(2, (1, 1)), (3, (2, 1))])
def test_two_groups(tmp_path, teachers, shares):
    how = {**QUICK, "teachers": teachers, "groups": 2, "labels_ahead": 6, "labels_again": 3}
    run = train(tmp_path / "run", 1, PASSES, how, data=SLOW, steps=40)
    assert_same_bits(run, plain_loop(run, 4))
    found = [served(run, group) for group in range(2)]
    assert tuple(len(there) for there, _ in found) == shares
    if teachers > 1:
        assert found[0][0].isdisjoint(found[1][0])
    assert all(sum(answered.values()) >= 40 for _, answered in found)


@pytest.mark.long
def test_a_teacher_that_one_group_refuses_is_no_share(tmp_path):
    """Two teachers and two groups: the group whose share is refused has the other one."""
    registry = f"tcp://127.0.0.1:{free_port()}"
    other = npp.Teacher(network()[:1])
    own = {"teachers": 1, "teacher_pace": 0.02}  # time for the other one to come
    how = {**of_registry(tmp_path, registry), **own, "groups": 2, "timeout_seconds": 20}
    with elsewhere(tmp_path, registry, other):
        run = train(tmp_path / "run", 1, PASSES, how, data=SLOW, steps=60)
    assert_same_bits(run, plain_loop(run, 4))
    assert [served(run, group)[0] for group in range(2)] == [{"teacher-0"}] * 2
    events = read_teacher_events(run.directory.path)
    assert "refused" in {each["event"] for each in events}


def test_the_only_teacher_of_one_group_dies(tmp_path):
    """It has the other group's, too."""
    path = tmp_path / "run"
    how = {**QUICK, "teachers": 2, "groups": 2, "labels_ahead": 6, "labels_again": 3}
    with meanwhile(path, 40, lambda: os.kill(teacher_pids()[0], signal.SIGKILL)):
        run = train(path, 1, PASSES, how, data=SLOW, steps=60)
    assert_same_bits(run, plain_loop(run, 4))
    for group in range(2):
        assert len(served(run, group)[0]) >= 1


def card(name):
    return TeacherCard(name=name, address="", public_key="", digest="", numeric_class="")


@pytest.mark.parametrize(("students", "teachers"), [*itertools.product(range(1, 5), range(1, 9))])
def test_every_student_has_some_and_all_teachers_are_shared(students, teachers):
    cards = [card(f"{number}") for number in range(teachers)]
    shares = [share_of(cards, {}, (which, students)) for which in range(students)]
    sizes = [len(share) for share in shares]
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
    users = Counter(each.name for share in shares for each in share)
    assert len(users) == teachers and max(users.values()) - min(users.values()) <= 1


def test_who_is_refused_is_not_shared():
    cards = [card("a"), card("b")]
    refused = {"b": card("b")}
    assert share_of(cards, refused, (1, 2)) == [card("a")]
    assert share_of(cards, {"b": card("c")}, (1, 2)) == [card("b")]

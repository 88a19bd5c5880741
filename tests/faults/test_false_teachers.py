"""Teachers and students that say what nobody says: one line, and the run goes on, with its bits."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack

import pytest
import torch

import naspipe as npp
from naspipe.distill.admission_check import Terms
from naspipe.distill.label_messages import MAX_NUMBER, LabelRequest, student_frames
from naspipe.distill.registry import open_registry
from naspipe.distill.teacher_card import TeacherCard
from tests.distill.servers import redis_server
from tests.equivalence.harness import assert_same_bits
from tests.equivalence.test_teachers import plain_loop, train
from tests.faults import false_teachers
from tests.faults.false_teachers import FalseStudent, false_teacher
from tests.faults.other_teachers import SLOW, Noting, elsewhere, of_registry
from tests.thinned import long


def run_beside(tmp_path, url, said, **more):
    """A run with a teacher of its own, which leaves something to do for others."""
    how = {
        **of_registry(tmp_path, url), "teachers": 1, "teacher_pace": 0.015, "labels_ahead": 8,
        "labels_again": 6, "label_audit": 0, **more.pop("execution", {}),
    }  # fmt: skip
    return train(
        tmp_path / "run", 1, execution=how, data=SLOW, steps=100, observer=Noting(said), **more
    )


FALSE = {
    "garbage": "a message about labels cannot be read",
    "oversized": "a message about labels cannot be read",
    "foreign": "expected a message of a teacher, found",
    "more_frames": "expected a message of a teacher, found 'label'",
    "never_asked": "expected labels that it was asked for, found an answer for batch",
    "short": "expected a label of (12, 10) for batch",
    "other_classes": "(10,) a sample, found torch.float32 and (9,)",
    "other_numbers": "(10,) a sample, found torch.float64 and (10,)",
    "with_a_gradient": "expected a tensor without a gradient",
    "without_end": "does not fit: it takes 4 bytes",
    "another_greeting": "expected labels, found another greeting",
}


@pytest.mark.parametrize("part", range(2))
def test_false_teachers_are_refused_by_a_line_each(tmp_path, part):
    """Half of them at a time, beside one that is right."""
    said, names = [], sorted(FALSE)[part::2]
    with redis_server(tmp_path) as server, ExitStack() as stack:
        for name in names:
            twist = getattr(false_teachers, name)
            stack.enter_context(false_teacher(tmp_path, server.url, twist, name=name))
        run = run_beside(tmp_path, server.url, said)
    assert_same_bits(run, plain_loop(run))
    refused = sorted(text for text in said if "is refused: " in text)
    assert len(refused) == len(names), refused
    for name, line in zip(names, refused, strict=True):
        assert line.startswith(f"teacher {name} is refused: ") and "\n" not in line, line
        assert FALSE[name] in line, line
    assert run.manifest["measured"]["teachers"]["refused"].keys() == set(names)


@pytest.mark.parametrize("since", [long(-1), 3])
def test_a_teacher_that_never_stops_talking_is_refused_too(tmp_path, since):
    """From its first answer on, or later: nobody else waits for it."""
    said = []
    how = (false_teachers.another_greeting, since, 3000)
    with redis_server(tmp_path) as server, false_teacher(tmp_path, server.url, *how):
        run = run_beside(tmp_path, server.url, said)
    assert_same_bits(run, plain_loop(run))
    assert len([text for text in said if "teacher false is refused" in text]) == 1


def test_labels_that_are_no_numbers_are_the_recipes_business(tmp_path):
    """Of a teacher that is trusted: the run stops, or skips those steps."""
    twist = false_teachers.not_a_number
    with (
        redis_server(tmp_path) as server,
        false_teacher(tmp_path, server.url, twist),
        pytest.raises(npp.NaspipeError, match=r"nan.*nonfinite=.skip"),
    ):
        run_beside(tmp_path, server.url, [])
    assert json.loads((tmp_path / "run/manifest.json").read_text())["status"] != "complete"


def test_such_steps_can_be_skipped(tmp_path):
    twist = false_teachers.not_a_number
    with redis_server(tmp_path) as server, false_teacher(tmp_path, server.url, twist):
        run = run_beside(tmp_path, server.url, [], recipe={"nonfinite": "skip"})
    skipped = run.manifest["measured"]["nonfinite_steps"]
    assert skipped and all(not torch.tensor(run.losses[y]).isfinite() for y in skipped)


def test_a_false_student_costs_a_teacher_nothing_but_time(tmp_path):
    with redis_server(tmp_path) as server, elsewhere(tmp_path, server.url) as process:
        registry = open_registry(server.url)
        deadline = time.monotonic() + 20
        while not (cards := registry.cards()) and time.monotonic() < deadline:
            time.sleep(0.05)
        student = FalseStudent(cards[0])
        student.start()
        try:
            run = train(
                tmp_path / "run", 1, execution=of_registry(tmp_path, server.url), data=SLOW,
                steps=60,
            )  # fmt: skip
        finally:
            student.end()
        assert process.is_alive() and student.answers > 20
    assert_same_bits(run, plain_loop(run))
    assert (tmp_path / "teacher.key.said").read_text().count("a student is refused") > 1


@pytest.mark.parametrize("number", [0, 1_000_000, MAX_NUMBER - 1])
def test_a_request_is_small(number):
    """A batch is named, and not sent."""
    assert sum(map(len, student_frames(LabelRequest(number)))) <= 200


@pytest.mark.parametrize(
    ("address", "is_greeted"),
    [
        ("ipc:///run/np-1/teacher-0", True),
        ("ipc:///run/np-1/../other", False),
        ("ipc:///run/np-2/teacher-0", False),
        ("tcp://127.0.0.1:29700", False),
    ],
)
def test_who_needs_no_key(address, is_greeted):
    """The run's own teachers, whose sockets lie in its private directory; nobody beside it."""
    terms = Terms(
        digest="a", numeric_class="c", check=None, keys=frozenset(), private="ipc:///run/np-1/"
    )
    problem = terms.card_problem(TeacherCard("x", address, "", "a", "c"))
    assert (problem == "") == is_greeted, problem
    assert is_greeted or problem.startswith("expected a key of teacher_keys, found none at")

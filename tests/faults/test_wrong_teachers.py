"""Teachers that go wrong, forget, or cannot start: one clear line, and no wrong bit is left."""

from __future__ import annotations

import os
import re
import signal
import socket

import pytest
import torch

import naspipe as npp
from naspipe.config.errors import StageFailedError
from naspipe.distill.label_network import LabelNetwork
from naspipe.distill.teacher_server import TeacherServer
from naspipe.store.teacher_events import read_teacher_events
from tests.equivalence.harness import assert_same_bits
from tests.equivalence.test_teachers import plain_loop, train
from tests.faults.other_teachers import (
    QUICK,
    SLOW,
    children,
    meanwhile,
    of_registry,
    teacher_pids,
)


def same_bits(run):
    assert_same_bits(run, plain_loop(run))


def records(path):
    return read_teacher_events(path)


def test_a_bit_is_flipped_after_the_exam(tmp_path, monkeypatch):
    """The audit finds it, and the run ends with both names."""
    answer = LabelNetwork.label_of
    marker = tmp_path / "bad"

    def label_of(network, number, fields):
        label = answer(network, number, fields)
        if number >= 10 and is_bad(marker):
            label.view(torch.int32)[0, 0] ^= 1
        return label

    monkeypatch.setattr(LabelNetwork, "label_of", label_of)
    how = {**QUICK, "teachers": 2, "label_audit": 4}
    with pytest.raises((npp.ConfigError, StageFailedError)) as caught:
        train(tmp_path / "run", 1, execution=how, data=SLOW, steps=60)
    text = str(caught.value)
    assert "expected the same bits of batch" in text
    assert "teacher-0" in text and "teacher-1" in text


def is_bad(marker):
    """The first process that asks is; no other one."""
    try:
        marker.open("x").write(str(os.getpid()))
    except FileExistsError:
        return marker.read_text() == str(os.getpid())
    return True


def test_a_resume_begins_before_the_labels_that_are_in_doubt(tmp_path, monkeypatch):
    """Some that nobody looked at were used, and are in checkpoints."""
    answer = LabelNetwork.label_of
    marker, is_cured = tmp_path / "bad", tmp_path / "cured"

    def label_of(network, number, fields):
        label = answer(network, number, fields)
        if number >= 10 and is_bad(marker) and not is_cured.exists():
            label.view(torch.int32)[0, 0] ^= 1 << 20
        return label

    monkeypatch.setattr(LabelNetwork, "label_of", label_of)
    path = tmp_path / "run"
    how = {**QUICK, "teachers": 2, "label_audit": 24, "checkpoint_every": 2, "labels_ahead": 6}
    how |= {"labels_again": 2, "keep_checkpoints": 50}
    with pytest.raises(npp.ConfigError) as caught:
        train(path, 1, execution=how, data=SLOW, steps=100)
    doubtful = int(re.search(r"labels from batch (\d+) on are in doubt", str(caught.value))[1])
    is_cured.touch()
    run = train(path, 1, execution=how, data=SLOW, steps=100, resume=True)
    assert run.manifest["life"]["first"][0] <= doubtful
    same_bits(run)


def test_a_teacher_that_forgot_its_student_is_greeted_anew(tmp_path, monkeypatch):
    answer = TeacherServer._answer

    def forgetful(server, student, request):
        if server.num_answered == 7:
            server._students.clear()
            server.num_answered += 1
        return answer(server, student, request)

    monkeypatch.setattr(TeacherServer, "_answer", forgetful)
    path = tmp_path / "run"
    run = train(path, 1, execution={**QUICK, "teachers": 1}, data=SLOW, steps=40)
    same_bits(run)
    assert [each["event"] for each in records(path)].count("joined") == 2


def test_a_port_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        registry = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            npp.ConfigError, match=r"registry to start, found tcp://.*cannot listen"
        ):
            train(tmp_path / "run", 1, execution=of_registry(tmp_path, registry))
    assert not (tmp_path / "run").exists()


def test_teachers_that_cannot_start_are_not_started_for_ever(tmp_path, monkeypatch, capfd):
    def fails(*values):
        raise MemoryError("no room for a teacher")

    monkeypatch.setattr(TeacherServer, "run", fails)
    how = {**QUICK, "teachers": 1, "timeout_seconds": 4.0, "teacher_ttl": 0.5}
    with pytest.raises(npp.ConfigError, match="expected a teacher within 4 s"):
        train(tmp_path / "run", 1, execution=how, steps=5)
    assert 1 <= capfd.readouterr().err.count("MemoryError: no room for a teacher") <= 4


def test_a_part_of_a_teacher_is_killed(tmp_path):
    """It refuses what it is asked; another one is asked."""

    def kill():
        parts = [part for pid in teacher_pids() for part in children(pid)]
        os.kill(parts[0], signal.SIGKILL)

    path = tmp_path / "run"
    with meanwhile(path, 9, kill):
        how = {**QUICK, "teachers": 2, "teacher_stages": 2}
        run = train(path, 1, execution=how, data=SLOW, steps=80)
    same_bits(run)
    counts = run.manifest["measured"]["teachers"]["by_teacher"].values()
    assert sum(each["refused"] for each in counts) > 0

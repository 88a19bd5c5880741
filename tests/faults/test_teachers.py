"""Teachers that die, hang, lie, come and go: the bits of the undisturbed run, or one clear line."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from contextlib import suppress

import pytest

import naspipe as npp
from naspipe.distill.teacher_card import own_pair
from naspipe.store.teacher_events import read_teacher_events
from tests.distill.servers import free_port, redis_server
from tests.equivalence.harness import assert_same_bits
from tests.equivalence.test_teachers import network, plain_loop, train
from tests.faults.helpers import Calm
from tests.faults.other_teachers import (
    QUICK,
    SLOW,
    Liar,
    Noting,
    elsewhere,
    meanwhile,
    of_registry,
    slow,
    teacher_pids,
)
from tests.thinned import long


def same_bits(run):
    assert_same_bits(run, plain_loop(run))


def records(path):
    return read_teacher_events(path)


def joined(path):
    return {each["teacher"] for each in records(path) if each["event"] == "joined"}


@pytest.mark.parametrize(("stages", "lines"), [long(1, 9), long(2, 2), (2, 20)])
def test_one_is_killed(tmp_path, stages, lines):
    path = tmp_path / "run"
    with meanwhile(path, lines, lambda: os.kill(teacher_pids()[0], signal.SIGKILL)):
        how = {**QUICK, "teachers": 2}
        run = train(path, stages, execution=how, data=SLOW, steps=80)
    same_bits(run)
    assert not teacher_pids()


def test_all_are_killed_and_hired_anew(tmp_path):
    def kill():
        for pid in teacher_pids():
            os.kill(pid, signal.SIGKILL)

    path = tmp_path / "run"
    with meanwhile(path, 5, kill):
        how = {**QUICK, "teachers": 2, "labels_ahead": 4, "labels_again": 2}
        run = train(path, 1, execution=how, data=SLOW, steps=80)
    same_bits(run)
    assert [each["event"] for each in records(path)].count("joined") > 2


@pytest.mark.parametrize("seconds", [0.3, 2.0])
def test_one_is_stopped_for_less_and_for_more_than_it_may_be_silent(tmp_path, seconds):
    def stop():
        pid = teacher_pids()[0]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        with suppress(ProcessLookupError):  # the run did without it, and is over
            os.kill(pid, signal.SIGCONT)

    path = tmp_path / "run"
    with meanwhile(path, 5, stop):
        how = {**QUICK, "teachers": 2}
        run = train(path, 1, execution=how, data=SLOW, steps=90)
    same_bits(run)


def test_nobody_is_left(tmp_path):
    """The first label that is missing is named, and the run goes on with another one later."""

    def kill():
        for pid in [*teacher_pids()]:
            os.kill(pid, signal.SIGSTOP)

    path = tmp_path / "run"
    how = {**QUICK, "teachers": 1, "labels_ahead": 4, "labels_again": 2, "checkpoint_every": 4}
    with meanwhile(path, 9, kill), pytest.raises(npp.ConfigError) as caught:
        more = {"timeout_seconds": 1.5, "window": 3}
        train(path, 1, execution={**how, **more}, data=SLOW, steps=60)
    assert "expected a teacher within 1.5 s" in str(caught.value)
    assert "the first label that is missing is that of batch" in str(caught.value)
    run = train(path, 2, execution={**how, "teachers": 3}, data=SLOW, steps=60, resume=True)
    assert run.manifest["life"]["first"][0] > 0
    same_bits(run)


@pytest.mark.parametrize("inputs", ["numbers", "sent"])
@pytest.mark.parametrize("stages", [1, 2])
def test_teachers_from_elsewhere(tmp_path, stages, inputs):
    with redis_server(tmp_path) as server, elsewhere(tmp_path, server.url):
        how = {**of_registry(tmp_path, server.url), "teacher_inputs": inputs}
        run = train(tmp_path / "run", stages, execution=how, data=SLOW, steps=30)
        same_bits(run)
        keys = server_keys(server)
    assert keys <= 1


def server_keys(server):
    import redis

    with redis.Redis.from_url(server.url) as client:
        return client.dbsize()


class UntilJoined(Calm):
    """Steps take longer from some number on, until so many teachers have come."""

    def __init__(self, path, teachers, since):
        super().__init__(slow)
        self.path, self.teachers, self.since = path, teachers, since

    def __call__(self, seed, sequence_id):
        if sequence_id >= self.since and len(joined(self.path)) < self.teachers:
            time.sleep(0.2)
        return super().__call__(seed, sequence_id)


def test_one_joins_over_the_runs_own_registry(tmp_path):
    registry = f"tcp://127.0.0.1:{free_port()}"
    path = tmp_path / "run"
    (tmp_path / "known").write_text(own_pair(tmp_path / "teacher.key")[0] + "\n")
    stack = []

    def join():
        context = elsewhere(tmp_path, registry)
        stack.append(context)
        context.__enter__()

    with meanwhile(path, 5, join):
        how = {**of_registry(tmp_path, registry), "teachers": 1}
        run = train(path, 2, execution=how, data=UntilJoined(path, 2, since=20), steps=150)
    stack[0].__exit__(None, None, None)
    same_bits(run)
    assert len(joined(path)) == 2


def test_redis_is_killed_and_comes_back_empty(tmp_path):
    path = tmp_path / "run"
    with redis_server(tmp_path) as server, elsewhere(tmp_path, server.url):

        def restart():
            server.kill()
            time.sleep(1.5)
            server.start()

        how = of_registry(tmp_path, server.url)
        with meanwhile(path, 5, restart):
            run = train(path, 1, execution=how, data=SLOW, steps=120)
        same_bits(run)
        assert [each["event"] for each in records(path)].count("left") == 0


@pytest.mark.parametrize("which", [long(0), 1])
def test_a_stage_is_killed(tmp_path, which):
    """The teachers stay; the next life asks again for what it needs."""

    def kill():
        stages = {each.name: each.pid for each in multiprocessing.active_children()}
        os.kill(stages[f"naspipe-stage-{which}"], signal.SIGKILL)

    path = tmp_path / "run"
    how = {**QUICK, "teachers": 2, "checkpoint_every": 4, "max_restarts": 1, "window": 4}
    with meanwhile(path, 9, kill):
        run = train(path, 2, execution=how, data=SLOW, steps=60)
    same_bits(run)
    assert run.manifest["life"] == {"generation": 1, "first": run.manifest["life"]["first"]}
    assert run.manifest["life"]["first"][0] > 0
    assert run.manifest["measured"]["teachers"]["by_teacher"]["teacher-0"]["answered"] > 0


def test_one_joins_while_checkpoints_are_taken(tmp_path):
    path = tmp_path / "run"
    how = {**QUICK, "teachers": 1, "teachers_most": 3, "checkpoint_every": 1, "labels_ahead": 2}
    run = train(path, 2, execution={**how, "labels_again": 1}, data=SLOW, steps=60)
    same_bits(run)


def test_no_registry_at_the_start(tmp_path):
    how = of_registry(tmp_path, f"redis://127.0.0.1:{free_port()}")
    with pytest.raises(npp.NaspipeError, match="the registry does not answer"):
        train(tmp_path / "run", 1, execution=how)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("teacher", "known", "why"),
    [
        (lambda: npp.Teacher(network()[:1]), True, "expected a teacher of digest"),
        (lambda: npp.Teacher(network()), False, "expected a key of teacher_keys, found"),
        (lambda: Liar(3), True, "expected the bits of this run's label of batch 0, found others"),
    ],
)
def test_whom_a_run_refuses(tmp_path, teacher, known, why):
    """By one line that names it; the run goes on with its own teacher."""
    said = []
    path = tmp_path / "run"
    with redis_server(tmp_path) as server, elsewhere(tmp_path, server.url, teacher()):
        if not known:
            (tmp_path / "known").write_text("")
        how = {**of_registry(tmp_path, server.url), "teachers": 1}
        run = train(path, 1, execution=how, data=SLOW, steps=60, observer=Noting(said))
    same_bits(run)
    assert [text for text in said if "is refused: " in text and why in text], said
    refused = [each for each in records(path) if each["event"] == "refused"]
    assert len(refused) == 1 and why in refused[0]["why"]


@pytest.mark.parametrize("seed", [0, long(1)])
def test_they_come_and_go(tmp_path, seed):
    """At random moments, of which each has its own seed."""
    draws = random.Random(seed)
    path = tmp_path / "run"
    is_over = threading.Event()

    def storm():
        while not is_over.wait(draws.uniform(0.1, 0.6)):
            if pids := teacher_pids():
                how = draws.choice([signal.SIGKILL, signal.SIGTERM])
                try:
                    os.kill(draws.choice(pids), how)
                except ProcessLookupError:
                    continue

    thread = threading.Thread(target=storm)
    thread.start()
    how = {**QUICK, "teachers": 3, "teachers_most": 3, "label_audit": 8}
    try:
        run = train(path, draws.choice([1, 2]), execution=how, data=SLOW, steps=60)
    finally:
        is_over.set()
        thread.join()
    same_bits(run)

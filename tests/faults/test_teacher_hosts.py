"""A teacher on another host: found by a Redis or the run's registry, reached with CURVE keys."""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager

import pytest
import torch

import naspipe as npp
from naspipe.distill.label_service import Teaching, teach
from naspipe.distill.teacher_card import own_pair
from naspipe.store.teacher_events import read_teacher_events
from tests.distill.servers import PROGRAM
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits
from tests.equivalence.test_teachers import network, plain_loop, train
from tests.faults.other_teachers import SLOW, of_registry
from tests.faults.two_hosts import TwoHosts, why_not
from tests.forked import Fork
from tests.launch.test_launcher_death import wait_until

PORT = 29950
HERE, THERE = TwoHosts.addresses


@pytest.fixture
def hosts():
    if reason := why_not():
        pytest.skip(reason)
    with TwoHosts() as made:
        yield made


@contextmanager
def redis_on(hosts, directory):
    """A server on host 0, bound to its address on the link."""
    if PROGRAM is None:
        pytest.skip("needs redis-server or valkey-server (scripts/registry.sh says how)")
    words = [PROGRAM, "--port", str(PORT), "--bind", HERE, "--protected-mode", "no", "--save", ""]
    process = subprocess.Popen(
        ["ip", "netns", "exec", hosts.names[0], *words, "--dir", str(directory)],
        stdout=subprocess.DEVNULL,
    )
    try:
        yield f"redis://{HERE}:{PORT}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def forked(function, *arguments):
    fork = Fork(function, *arguments)
    try:
        yield fork
    finally:
        fork.end()


@pytest.fixture(autouse=True)
def one_thread():
    """The teacher is made here and in forks, which have none of torch's threads; its bits differ
    with their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def teacher(hosts, registry, key):
    """On host 1; tries until the registry is there."""
    hosts.enter(1)
    way = Teaching(registry=registry, host=THERE, key=key, ttl_seconds=0.8)
    for _ in range(100):
        try:
            return teach(npp.Teacher(network()), lambda record: SLOW, way, lambda text: None)
        except npp.NaspipeError:
            time.sleep(0.1)
    return 1


def student(hosts, path, execution, steps):
    hosts.enter(0)
    train(path, 2, execution=execution, data=SLOW, steps=steps)
    return 0


def lines(path):
    losses = path / "losses.jsonl"
    return losses.read_bytes().count(b"\n") if losses.exists() else 0


def events(path, kind):
    return [each for each in read_teacher_events(path) if each["event"] == kind]


def far(path, kind):
    """Of the teacher of the other host: its name is not one of the run's own."""
    return [each for each in events(path, kind) if not each["teacher"].startswith("teacher-")]


@contextmanager
def run_and_teacher(tmp_path, hosts, registry, steps, **execution):
    """A run on host 0 and a teacher on host 1, whose key it knows."""
    public, _ = own_pair(tmp_path / "teacher.key")
    (tmp_path / "known").write_text(f"{public} the other host\n")
    how = {**of_registry(tmp_path, registry), **execution}
    path = tmp_path / "run"
    with (
        forked(teacher, hosts, registry, tmp_path / "teacher.key"),
        forked(student, hosts, path, how, steps) as run,
    ):
        yield path, run


def assert_ended_with_the_bits(path, run):
    assert run.join(120) == 0, run.said
    done = npp.Run(spaces.mixed(), path)
    assert_same_bits(done, plain_loop(done))


@pytest.mark.parametrize("kind", ["redis", "tcp"])
def test_a_teacher_of_another_host(tmp_path, hosts, kind):
    """Over the run's own registry it may come later; over a Redis it is the only one."""
    if kind == "tcp":
        registry, own = f"tcp://{HERE}:{PORT}", {"teachers": 1, "teacher_pace": 0.03}
        with run_and_teacher(tmp_path, hosts, registry, 120, **own) as (path, run):
            assert_ended_with_the_bits(path, run)
    else:
        with (
            redis_on(hosts, tmp_path) as registry,
            run_and_teacher(tmp_path, hosts, registry, 60) as (path, run),
        ):
            assert_ended_with_the_bits(path, run)
    assert len(far(path, "joined")) == 1
    assert sum(each["answered"] for each in far(path, "counts")) > 20


def test_a_link_that_is_cut_for_a_while(tmp_path, hosts):
    """Half-open: nobody is told. The run goes on with its own teacher; the other comes back."""
    with redis_on(hosts, tmp_path) as registry:
        own = {"teachers": 1, "labels_ahead": 8, "labels_again": 6, "teacher_pace": 0.015}
        with run_and_teacher(tmp_path, hosts, registry, 400, **own) as (path, run):
            wait_until(lambda: lines(path) > 20 and far(path, "joined"), 60)
            hosts.cut()
            before = lines(path)
            wait_until(lambda: far(path, "left"), 30)
            wait_until(lambda: lines(path) > before + 40, 30)
            hosts.heal()
            assert_ended_with_the_bits(path, run)
    assert len(far(path, "joined")) == 2, "it was there again"
    assert not events(path, "refused")

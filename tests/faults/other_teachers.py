"""Teachers that tests start, end and bring from elsewhere."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import torch

import naspipe as npp
from naspipe.distill.label_service import Teaching, teach
from naspipe.distill.teacher_card import own_pair
from tests.cli.test_resume import wait_for
from tests.equivalence import spaces
from tests.equivalence.test_teachers import network
from tests.faults.helpers import Calm

QUICK = {"teacher_ttl": 0.8, "labels": "service"}


def slow(seed, number):
    """A step takes long enough for something to happen to its teacher."""
    time.sleep(0.01)
    return spaces.vectors(seed, number)


SLOW = Calm(slow)


def children(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def teacher_pids():
    """Of the run's own teachers."""
    pools = [each for each in multiprocessing.active_children() if each.name == "naspipe-teachers"]
    return [pid for pool in pools for pid in children(pool.pid)]


@contextmanager
def meanwhile(path, lines, do):
    """Something that is done when so many losses are there."""

    def wait():
        wait_for(path / "losses.jsonl", lines)
        do()

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def flip(space, position):
    """One bit of one weight of a teacher's first layer."""
    first = space.blocks[0].candidates[0]

    def made():
        layer = first()
        layer.weight.data.view(torch.int32)[0, position] ^= 1
        return layer

    return npp.Space(space.name, [npp.Block([made]), *space.blocks[1:]])


class Liar(npp.Teacher):
    """Says the digest of the teacher that it was before a bit of it was flipped."""

    def __init__(self, position):
        super().__init__(network())
        self.space = flip(self.space, position)


@contextmanager
def elsewhere(tmp_path, registry, teacher=None, key="teacher.key", **more):
    """A teacher that somebody else started; a process of its own."""
    way = Teaching(registry=registry, key=tmp_path / key, ttl_seconds=0.8, **more)
    public, _ = own_pair(way.key)
    with (tmp_path / "known").open("a") as file:
        file.write(f"{public} {key}\n")
    process = multiprocessing.get_context("fork").Process(
        target=_teach, args=(teacher or npp.Teacher(network()), way, tmp_path / f"{key}.said")
    )
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join(10)
        process.kill()


def _teach(teacher, way, said):
    def say(text):
        with said.open("a") as file:
            file.write(text + "\n")

    teach(teacher, lambda record: SLOW, way, say)
    os._exit(0)


def of_registry(tmp_path, registry):
    (tmp_path / "known").touch()
    return {**QUICK, "teacher_registry": registry, "teacher_keys": str(tmp_path / "known")}


class Noting:
    def __init__(self, said):
        self._said = said

    def on_note(self, text):
        self._said.append(text)

    def __getattr__(self, name):
        return lambda *values: None

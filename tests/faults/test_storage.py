"""Damaged and missing files, and a disk that is full: an older checkpoint, or one clear error."""

from __future__ import annotations

import errno
import itertools
import json
import multiprocessing
import os
import resource
import shutil
from pathlib import Path

import pytest

import naspipe as npp
from naspipe.config.errors import LogError, StorageError
from naspipe.store import checkpoints
from naspipe.store import losses as losses_file
from naspipe.store.access_log import AccessLogWriter
from naspipe.store.checkpoints import CheckpointFolder
from naspipe.store.compare import compare_runs
from naspipe.wire.reports import Observer
from naspipe.worker.checkpoints.checkpointer import Part
from tests.equivalence import spaces
from tests.faults.helpers import Calm, Ends, interrupt, train

_FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run that was interrupted, with two whole checkpoints; and one that was not."""
    path = tmp_path_factory.mktemp("ended")
    whole = train(path / "whole", Calm(spaces.vectors))
    with pytest.raises(npp.NaspipeError, match="interrupted"):
        train(path / "run", Ends(spaces.vectors, 14, interrupt, path / "marker"), stages=2)
    found = sorted((path / "run" / "checkpoints").iterdir())
    assert next(each.name for each in found).startswith("subnet-") and len(found) == 2
    return whole, path / "run"


@pytest.fixture
def run(ended, tmp_path):
    """A copy to damage: whole run, path, its older and its newer checkpoint."""
    path = tmp_path / "run"
    shutil.copytree(ended[1], path)
    return ended[0], path, *sorted((path / "checkpoints").iterdir())


def cut(path, length):
    os.truncate(path, length)


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << (place % 8)
    path.write_bytes(data)


def damages(file):
    size = file.stat().st_size
    yield from ((cut, length) for length in (0, 1, size // 2, size - 1))
    yield from ((flip, place) for place in range(0, size, 1 + size // 40))


def test_every_damage_of_every_file_is_seen(run):
    """The newer checkpoint is passed over for the older one, which is whole."""
    _, path, older, newer = run
    folder = CheckpointFolder(path / "checkpoints")
    first = int(older.name.split("-")[1])
    for file in [*sorted(newer.glob("*.safetensors")), newer / "manifest.json"]:
        data = file.read_bytes()
        for damage, where in damages(file):
            damage(file, where)
            found = folder.latest()
            if found.checkpoint.subnets != first:
                assert file.suffix == ".json" and is_same(json.loads(data), file), (file, where)
            else:
                assert len(found.passed_over) == 1 and str(newer) in found.passed_over[0]
            file.write_bytes(data)
        file.unlink()
        assert folder.latest().checkpoint.subnets == first
        file.write_bytes(data)
    assert folder.latest().checkpoint.subnets > first


def is_same(manifest, file):
    """Whether a damage of the manifest changed nothing but white space."""
    return json.loads(file.read_bytes()) == manifest


def test_shards_of_two_steps_are_not_mixed(run):
    _, path, older, newer = run
    shutil.copy(older / "stage-1.safetensors", newer / "stage-1.safetensors")
    found = CheckpointFolder(path / "checkpoints").latest()
    assert found.checkpoint.subnets == int(older.name.split("-")[1])


def test_a_resume_uses_the_older_one_and_says_so(run):
    whole, path, _, newer = run
    flip(newer / "stage-0.safetensors", 100)
    notes = []

    class Noted(Observer):
        on_note = staticmethod(notes.append)

    found = train(path, Calm(spaces.vectors), stages=3, resume=True, observer=Noted())
    assert any("passed over" in note and "stage-0.safetensors" in note for note in notes)
    (comparison,) = compare_runs([whole.directory.path, found.directory.path])
    assert comparison.is_identical, str(comparison)


def test_no_whole_checkpoint_is_one_clear_error(run):
    _, path, older, newer = run
    for each in (older, newer):
        (each / "stage-0.safetensors").unlink()
    with pytest.raises(LogError, match="expected a checkpoint that is whole, found none"):
        train(path, Calm(spaces.vectors), resume=True)


@pytest.mark.parametrize("damage", [lambda p: cut(p, 300), lambda p: flip(p, 70)])
def test_losses_that_a_checkpoint_relies_on(run, damage):
    _, path, _, _ = run
    damage(path / "losses.jsonl")
    with pytest.raises(
        LogError, match=r"losses\.jsonl(:1: expected the loss|: expected \d+ bytes with)"
    ):
        train(path, Calm(spaces.vectors), resume=True)


def test_what_a_killed_life_left_is_swept(run):
    whole, path, _, _ = run
    left = path / "checkpoints" / ".subnet-000000020.gen-0"
    left.mkdir()
    (left / "stage-0.safetensors").write_bytes(b"torn")
    found = train(path, Calm(spaces.vectors), resume=True)
    assert not left.exists()
    assert compare_runs([whole.directory.path, found.directory.path])[0].is_identical


def no_space(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_only(*arguments):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def failing(method, how, call):
    """The method, which fails at one of its calls and every later one."""
    calls = itertools.count(1)

    def act(*arguments, **options):
        if next(calls) >= call:
            how()
        return method(*arguments, **options)

    return act


@pytest.mark.parametrize("how", [no_space, read_only])
@pytest.mark.parametrize(("owner", "name", "call"), [
    (Part, "finish", 3), (checkpoints, "write_checkpoint_manifest", 3),
    (Path, "rename", 3), (losses_file.LossWriter, "sync", 3), (AccessLogWriter, "flush", 4),
])  # fmt: skip
def test_a_disk_that_fails_at_any_write(ended, tmp_path, monkeypatch, how, owner, name, call):
    """At the third checkpoint: one line, and the second one is still good."""
    monkeypatch.setattr(owner, name, failing(getattr(owner, name), how, call))
    with pytest.raises(StorageError) as caught:
        train(tmp_path / "run", Calm(spaces.vectors))
    assert "\n" not in str(caught.value) and ("space" in str(caught.value) or
                                              "Read-only" in str(caught.value))  # fmt: skip
    monkeypatch.undo()
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
    assert folder.latest().checkpoint.subnets >= 10
    found = train(tmp_path / "run", Calm(spaces.vectors), resume=True)
    assert compare_runs([ended[0].directory.path, found.directory.path])[0].is_identical


def full_disk(path, stages, queue):
    """Files may not grow beyond what two checkpoints of nothing need."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, 16_000))
    try:
        train(path, Calm(spaces.vectors), stages=stages, execution={"checkpoint_every": 8})
    except npp.NaspipeError as error:
        queue.put((type(error).__name__, str(error)))


@pytest.mark.parametrize("stages", [1, 2])
def test_a_full_disk_is_one_line(tmp_path, stages):
    receiver = _FORK.SimpleQueue()
    process = _FORK.Process(target=full_disk, args=(tmp_path / "run", stages, receiver))
    process.start()
    process.join(60)
    kind, text = receiver.get()
    assert kind == StorageError.__name__ and "\n" not in text and "File too large" in text
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").latest().checkpoint is None
    assert not list((tmp_path / "run" / "checkpoints").glob("subnet-*"))

"""What keeps a run whole, removed one by one: each removal turns a check red.

The version check has its own in tests/equivalence/test_timing_and_mutations.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import contextmanager, suppress

import pytest

from naspipe.config.errors import ConfigError, LogError
from naspipe.launch.claim import Claim, merge_parts
from naspipe.store import checkpoints, files, shards
from naspipe.store import checkpoints as snapshot
from naspipe.store import frames as framing
from naspipe.store import losses as losses_file
from naspipe.store.checkpoints import CheckpointFolder, cut_name, read_checkpoint
from naspipe.store.files import write_json
from naspipe.store.frames import FramedWriter, read_frames
from naspipe.store.run_directory import RunDirectory
from naspipe.store.shards import RawTensor
from tests.store.shards import write_shard

MAGIC = b"TESTTEST"


def part(folder, generation, value):
    """One stage's part of the checkpoint at 4, as a generation writes it."""
    tensors = {"param/w": RawTensor("U8", (4,), bytes([value] * 4))}
    directory = folder.working(cut_name(4), generation)
    shard = write_shard(directory, "s.safetensors", {"0/a/": tensors})
    kinds = ("versions", "history", "scalars", "strides")
    return {"shard": shard, **{kind: {} for kind in kinds}}


def zombies_are_fenced(path):
    """What a process of an earlier generation writes is in no checkpoint of a later one."""
    folder = CheckpointFolder(path / "checkpoints")
    new = part(folder, 1, 1)
    part(folder, 0, 2)  # the zombie wakes up
    folder.publish(cut_name(4), 1, merge_parts(4, [new]))
    tensors = read_checkpoint(folder.path / cut_name(4)).tensors
    assert tensors["0/a/param/w"].data == b"\1\1\1\1"
    directory = RunDirectory(path)
    assert directory.access_log(0, 1) != directory.access_log(0, 0)


def one_launcher_at_a_time(path):
    with Claim(path):
        child = os.fork()
        if child == 0:
            try:
                with Claim(path):
                    code = 1
            except ConfigError:
                code = 0
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


def damaged_tensors_are_seen(path):
    _damage(path, lambda data: data[:-1] + bytes([data[-1] ^ 1]))


def damaged_headers_are_seen(path):
    _damage(path, lambda data: data.replace(b"/w", b"/v"))


def _damage(path, change):
    folder = CheckpointFolder(path)
    folder.publish(cut_name(4), 0, merge_parts(4, [part(folder, 0, 1)]))
    shard = path / cut_name(4) / "s.safetensors"
    shard.write_bytes(change(shard.read_bytes()))
    with pytest.raises(LogError, match="is damaged: "):
        read_checkpoint(path / cut_name(4))


def damaged_records_are_seen(path):
    log = path / "log"
    with FramedWriter(log, MAGIC, 1) as writer:
        for number in range(3):
            writer.append(bytes([number] * 10))
    data = bytearray(log.read_bytes())
    data[25] ^= 1
    log.write_bytes(data)
    with pytest.raises(LogError, match="CRC32"):
        list(read_frames(log, MAGIC, 1))


def damaged_losses_are_seen(path):
    with losses_file.LossWriter(path / "losses.jsonl") as writer:
        writer.append(0, 0, 1.5, "3fc00000")
        mark = writer.sync(1)
    text = (path / "losses.jsonl").read_text()
    (path / "losses.jsonl").write_text(text.replace("1.5", "2.5"))
    with pytest.raises(LogError, match="CRC32"):
        losses_file.check_losses(path / "losses.jsonl", mark)


def a_torn_write_leaves_the_old_file(path):
    """The process ends half-way through a file that replaces another one."""
    manifest = path / "manifest.json"
    write_json(manifest, {"status": "running"})
    with suppress(KeyboardInterrupt), files.atomic_file(manifest) as file:
        file.write(b'{"status": "comp')
        raise KeyboardInterrupt
    assert manifest.read_bytes().strip().endswith(b"}")


def nothing_unfinished_has_a_checkpoints_name(path):
    folder = CheckpointFolder(path)
    part(folder, 0, 1)
    assert not list(path.glob("subnet-*"))


CHECKS = {
    check.__name__: check
    for check in (
        zombies_are_fenced, one_launcher_at_a_time, damaged_tensors_are_seen,
        damaged_headers_are_seen,
        damaged_records_are_seen, damaged_losses_are_seen, a_torn_write_leaves_the_old_file,
        nothing_unfinished_has_a_checkpoints_name,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_as_it_is(tmp_path, name):
    CHECKS[name](tmp_path)


class NoDigest:
    """A checksum that is always right."""

    def __init__(self, *arguments, **options):
        self.digest_size = 0

    def update(self, data):
        pass

    def hexdigest(self):
        return "0" * 64


@contextmanager
def in_place(path, nbytes=None):
    """Without another name and a rename."""
    with path.open("wb") as file:
        yield file


def without_generation(folder, name, generation):
    return folder.path / f".{name}"


def with_its_last_name(folder, name, generation):
    return folder.path / name


class Right:
    """A checksum that is as any other."""

    def __ne__(self, other):
        return False


MUTATIONS = {
    "the fence in names of shards": (
        "zombies_are_fenced", CheckpointFolder, "working", without_generation),
    "the fence in names of logs": (
        "zombies_are_fenced", RunDirectory, "access_log", lambda self, stage, generation=0: stage),
    "the lock": ("one_launcher_at_a_time", fcntl, "lockf", lambda *arguments: None),
    "the checksum of tensors": (
        "damaged_tensors_are_seen", shards, "crc32", lambda *data: Right()),
    "the digest of headers": ("damaged_headers_are_seen", hashlib, "blake2b", NoDigest),
    "the checksum of records": ("damaged_records_are_seen", framing, "crc32", lambda *data: 0),
    "the checksum of losses": ("damaged_losses_are_seen", losses_file, "crc32", lambda *data: 0),
    "the rename of files": ("a_torn_write_leaves_the_old_file", files, "atomic_file", in_place),
    "the rename of checkpoints": (
        "nothing_unfinished_has_a_checkpoints_name", CheckpointFolder, "working",
        with_its_last_name),
}  # fmt: skip


@pytest.mark.parametrize("removed", MUTATIONS)
def test_a_removal_is_seen(tmp_path, monkeypatch, removed):
    check, owner, name, replacement = MUTATIONS[removed]
    monkeypatch.setattr(owner, name, replacement)
    assert snapshot.hashlib is hashlib and checkpoints.CheckpointFolder is CheckpointFolder
    with pytest.raises((AssertionError, LogError, pytest.fail.Exception)):
        CHECKS[check](tmp_path)

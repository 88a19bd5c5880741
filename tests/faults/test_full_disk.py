"""A disk that is full, files that may not grow: one line with the file, and a run that says so."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import naspipe as npp
from naspipe.cli.main import main
from naspipe.config.errors import StorageError
from naspipe.config.messages import in_python
from naspipe.store.run_directory import RESERVED
from tests.equivalence import spaces
from tests.faults.helpers import Calm, train
from tests.forked import Fork

FORK = multiprocessing.get_context("fork")


def train_long(path, stages, execution=None):
    """A chain that is long enough for its access logs to be the longest files."""
    space = spaces.mixed(blocks=40)
    return train(path, Calm(spaces.vectors), space=space, stages=stages, execution=execution)


def limited(path, limit, stages, queue):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        train_long(path, stages, {"checkpoint_every": 0})
    except npp.NaspipeError as error:
        queue.put((type(error).__name__, str(error)))
    else:
        queue.put(("complete", ""))


@pytest.mark.parametrize("stages", [1, 2])
def test_the_last_records_do_not_fit(tmp_path, stages):
    """They are written when the stage has said everything else: that failed in silence."""
    whole = train_long(tmp_path / "whole", stages)
    longest = max(path.stat().st_size for path in (tmp_path / "whole" / "access").iterdir())
    assert longest > whole.directory.manifest.stat().st_size
    path, queue = tmp_path / "run", FORK.SimpleQueue()
    process = FORK.Process(target=limited, args=(path, longest - 7, stages, queue))
    process.start()
    process.join(60)
    kind, said = queue.get()
    assert kind == StorageError.__name__ and "\n" not in said
    assert f"{path}/access/stage-" in said or f"{path}/checkpoints/.final.gen-0/stage-" in said
    assert f"(ulimit -f: {longest - 7:,} bytes a file)" in said
    manifest = json.loads((path / "manifest.json").read_bytes())
    assert (manifest["status"], in_python(manifest["failure"])) == ("failed", said)
    assert not (path / RESERVED).exists() and not (whole.directory.path / RESERVED).exists()


TRAIN = [
    "train", "tests.faults.small_space:space", "--quiet", "--data",
    "tests.faults.small_space:batches",
]  # fmt: skip
_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000


def on_a_small_disk(place, size, *words):
    """A run in a file system of its own that has so much room.

    Returns what it wrote on stdout and stderr, and a copy of what is left.
    """
    kept = place.with_name("kept")

    def run():
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        status = main([*TRAIN, "--run-dir", "run", *words])
        run = Path("run")
        if run.exists():
            shutil.copytree(run, kept)
        return status

    said = on_a_disk(place, size, run)
    return said, kept


def on_a_disk(place, size, what):
    """What is written on stderr by a function on a file system of its own."""
    place.mkdir()
    with Fork(_mounted, place, size, what) as fork:
        assert fork.join(100) is not None
        return fork.said


def _mounted(place, size, what):
    """As the root of a namespace of its own, which a fork may be: it has one thread."""
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNTS | _NEW_USERS):
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    mount("--make-rprivate", "none", "/")
    mount("-t", "tmpfs", "-o", f"size={size}", "none", str(place))
    os.chdir(place)
    return what()


def mount(*words):
    subprocess.run(["mount", *words], check=True)


def may_mount(tmp_path):
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(tmp_path)]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path):
    if not may_mount(tmp_path):
        pytest.skip("no file system can be mounted here")
    return tmp_path / "disk"


def test_a_full_disk_is_named_and_the_run_says_how_it_ended(disk):
    """The final status fits: room was kept for it. What was half written is gone."""
    text, kept = on_a_small_disk(disk, "80k", "--steps", "120", "--stages", "2")
    (said,) = text.splitlines()
    assert said.startswith("naspipe: ") and said.count("No space left on device") == 1
    assert re.search(r"run/\S+ cannot be written \([\d,]+ bytes to write\): ", said)
    assert re.search(r"\([\d,]+ bytes free there\); free or add storage", said)
    manifest = json.loads((kept / "manifest.json").read_text())
    assert manifest["status"] == "failed" and f"naspipe: {manifest['failure']}" == said
    assert [*kept.rglob(".*")] == [kept / ".lock"]


@pytest.mark.parametrize("room", ["4k", "20k", "10m,nr_inodes=6"])
def test_a_disk_that_is_full_at_the_start_has_nothing_on_it(disk, room):
    """What is said of its room was found before what had been written was removed again."""
    text, kept = on_a_small_disk(disk, room, "--steps", "120", "--stages", "2")
    (said,) = text.splitlines()
    need, free = (int(each.replace(",", "")) for each in re.findall(r"\(([\d,]+) bytes", said))
    assert said.startswith("naspipe: run/")
    assert "its inodes are used up" in said if "inodes" in room else free < need
    assert not kept.exists()


def test_a_disk_that_is_read_only_is_named(disk):
    """A new run, an empty directory, and a run that would go on."""

    def runs():
        Path("empty").mkdir()
        assert main([*TRAIN, "--steps", "3", "--run-dir", "run"]) == 0
        manifest = Path("run/manifest.json")
        manifest.write_text(manifest.read_text().replace('"complete"', '"running"'))
        mount("-o", "remount,ro", "none", str(disk))
        for where in (["--run-dir", "new"], ["--run-dir", "empty"]):
            main([*TRAIN, *where])
        return main(["train", "--resume", "run"])

    found = on_a_disk(disk, "4m", runs)
    for name, said in zip(("new", "empty", "run"), found.splitlines(), strict=True):
        assert said.startswith(f"naspipe: run directory {name} cannot be ")
        assert "Read-only file system" in said

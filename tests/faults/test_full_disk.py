"""A disk that is full, files that may not grow: one line with the file, and a run that says so."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import shutil
import subprocess
import sys

import pytest

import naspipe as npp
from naspipe.core.errors import StorageError
from naspipe.core.wording.in_python import in_python
from naspipe.trace.results.reserved_space import RESERVED
from tests.equivalence import spaces
from tests.faults.helpers import Calm, train
from tests.test_architecture import ROOT

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


TRAIN = (
    f"{sys.executable} -m naspipe train tests.faults.small_space:space --quiet "
    f"--data tests.faults.small_space:batches"
)


def on_a_small_disk(place, size, *words):
    """A run in a file system of its own that has so much room, and what is left there."""
    look = "find run -name '.*'; cat run/manifest.json"
    return on_a_disk(place, size, f"{TRAIN} --run-dir run {' '.join(words)}; {look}")


def on_a_disk(place, size, what):
    """What a shell does on a file system of its own."""
    place.mkdir()
    script = f"mount -t tmpfs -o size={size} none {place} && cd {place} && {what}"
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


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
    found = on_a_small_disk(disk, "80k", "--steps", "120", "--stages", "2")
    (said,) = found.stderr.splitlines()
    assert said.startswith("naspipe: ") and said.count("No space left on device") == 1
    assert re.search(r"run/\S+ cannot be written \([\d,]+ bytes to write\): ", said)
    assert re.search(r"\([\d,]+ bytes free there\); free or add storage", said)
    left, manifest = found.stdout.split("{", 1)
    manifest = json.loads("{" + manifest)
    assert manifest["status"] == "failed" and f"naspipe: {manifest['failure']}" == said
    assert left.split() == ["run/.lock"]


@pytest.mark.parametrize("room", ["4k", "20k", "10m,nr_inodes=6"])
def test_a_disk_that_is_full_at_the_start_has_nothing_on_it(disk, room):
    """What is said of its room was found before what had been written was removed again."""
    found = on_a_small_disk(disk, room, "--steps", "120", "--stages", "2")
    said, *more = found.stderr.splitlines()
    need, free = (int(each.replace(",", "")) for each in re.findall(r"\(([\d,]+) bytes", said))
    assert said.startswith("naspipe: run/")
    assert "its inodes are used up" in said if "inodes" in room else free < need
    assert found.stdout == "" and all("No such file" in each for each in more) and len(more) == 2


def test_a_disk_that_is_read_only_is_named(disk):
    """A new run, an empty directory, and a run that would go on."""
    found = on_a_disk(disk, "4m", f"""mkdir empty; {TRAIN} --steps 3 --run-dir run >/dev/null
        sed -i 's/"complete"/"running"/' run/manifest.json; mount -o remount,ro none {disk}
        {TRAIN} --run-dir new; {TRAIN} --run-dir empty
        {sys.executable} -m naspipe train --resume run""")  # fmt: skip
    for name, said in zip(("new", "empty", "run"), found.stderr.splitlines(), strict=True):
        assert said.startswith(f"naspipe: run directory {name} cannot be ")
        assert "Read-only file system" in said

"""``--resume-if-exists``: one command that begins a run and, after any end, goes on with it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import naspipe
from naspipe.api import training
from naspipe.cli.main import main
from naspipe.launch.claim import Claim
from naspipe.store.compare import compare_runs
from naspipe.store.run_directory import LOCK, RunDirectory, is_held
from tests.cli.test_resume import RUN, start, wait_for
from tests.equivalence import spaces
from tests.faults.helpers import Calm, Ends, fail, train
from tests.launch.test_launcher_death import wait_until

WORDS = ["--checkpoint-every", "5", "--stages", "2", "--set", "window=4", "--resume-if-exists"]


def manifest(path: Path) -> dict:
    return json.loads((path / "manifest.json").read_text())


def test_the_same_command_begins_goes_on_and_finds_it_done(tmp_path, capfd, monkeypatch):
    whole, path = tmp_path / "whole", tmp_path / "run"
    assert main([*RUN, "--run-dir", str(whole)]) == 0
    with start(path, *WORDS) as launcher:
        wait_for(path / "losses.jsonl", 12)
        launcher.signal(signal.SIGKILL)
        launcher.join(20)
    same = [*RUN, "--run-dir", str(path), *WORDS]
    assert main(same) == 0
    assert manifest(path)["life"]["generation"] == 1 and manifest(path)["life"]["first"][0] >= 5
    (comparison,) = compare_runs([whole, path])
    assert comparison.is_identical, str(comparison)
    capfd.readouterr()
    monkeypatch.setattr(training, "check_spaces", lambda *_: pytest.fail("shapes are followed"))
    assert main([word for word in same if word != "--quiet"]) == 0
    found = capfd.readouterr()
    assert "is complete: there is nothing to resume" in found.err and str(path) in found.out


def test_a_start_that_was_killed_while_it_was_planned_begins_anew(tmp_path):
    """As of an earlier launcher that was killed; one that is still at it is left alone."""
    path = tmp_path / "run"
    left = RunDirectory(path)
    left.create()
    left.write_manifest({"format": 1, "status": "planning", "definition": {}})
    (path / "checkpoints" / "old").mkdir()
    launcher = os.fork()
    if not launcher:
        with Claim(path):
            signal.pause()
    try:
        wait_until(lambda: is_held(path / LOCK), 20)
        assert main([*RUN, "--run-dir", str(path), *WORDS]) == 2
        assert (path / "checkpoints" / "old").exists()
    finally:
        os.kill(launcher, signal.SIGKILL)
        os.waitpid(launcher, 0)
    assert main([*RUN, "--run-dir", str(path)]) == 2
    assert main([*RUN, "--run-dir", str(path), *WORDS]) == 0
    assert manifest(path)["status"] == "complete" and manifest(path)["life"]["generation"] == 0
    assert not (path / "checkpoints" / "old").exists()


def test_another_definition_is_refused(tmp_path, capsys):
    path = tmp_path / "run"
    assert main([*RUN, "--run-dir", str(path), *WORDS]) == 0
    assert main([*RUN, "--run-dir", str(path), *WORDS, "--seed", "4"]) == 2
    assert "is another run: its seed is 3, you asked for 4" in capsys.readouterr().err


def test_from_python(tmp_path):
    whole = train(tmp_path / "whole", Calm(spaces.vectors))
    data = Ends(spaces.vectors, 12, fail, tmp_path / "marker")
    with pytest.raises(naspipe.StageFailedError):
        train(tmp_path / "run", data, resume="if_exists")
    run = train(tmp_path / "run", Calm(spaces.vectors), resume="if_exists")
    assert run.manifest["life"]["generation"] == 1
    (comparison,) = compare_runs([whole.directory.path, run.directory.path])
    assert comparison.is_identical, str(comparison)

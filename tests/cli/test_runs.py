"""``naspipe runs``: what every run below a directory is at."""

from __future__ import annotations

import json
import os
import time

import pytest

from naspipe.cli.main import main
from naspipe.launch.claim import Claim
from naspipe.store.run_directory import HEARTBEAT, RunDirectory, write_heartbeat


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Some runs: complete, failed, under way, and one that was killed."""
    monkeypatch.chdir(tmp_path)
    base = tmp_path / "runs"
    for place, status in [("done", "complete"), ("deep/er/bad", "failed"), ("alive", "running"),
                          ("killed", "running"), ("streams/stream-1", "planning")]:  # fmt: skip
        directory = RunDirectory(base / place)
        directory.create()
        manifest = {"format": 1, "status": status, "definition": {"steps": 40}}
        if status == "complete":
            manifest["measured"] = {"steps_per_second": 12.25}
        if status == "failed":
            manifest["failure"] = "stage 1 failed\nand more"
        directory.write_manifest(manifest)
    (base / "deep/er/bad/checkpoints/final").mkdir()
    (base / "deep/er/bad/checkpoints/final/manifest.json").write_text("{}")
    (base / "other").mkdir()
    (base / "other" / "manifest.json").write_text('{"format": 1}')
    with Claim(base / "alive"):
        write_heartbeat(base / "alive", {"step": 7, "steps": 40, "steps_per_second": 3.5})
        yield base


def test_a_table(runs, capsys):
    assert main(["runs"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()[3:-1]}
    host = os.uname().nodename
    assert lines["alive"][:4] == ["alive", "running", "7/40", "3.5"] and lines["alive"][-1] == host
    assert lines["done"][:4] == ["done", "complete", "40/40", "12.2"]
    assert lines["deep/er/bad"][1] == "failed"
    assert lines["killed"][1] == lines["streams/stream-1"][1] == "died"
    assert len(lines) == 5


def test_a_run_that_stalls(runs, capsys):
    """It lives and is held, and its heartbeat is fresh; only its steps do not come."""
    now = time.time()
    beat = {"step": 7, "steps": 40, "steps_per_second": 0.5}
    for silence, said in ((3, "3 s ago "), (90, "90 s ago, stalled"), (400, "7 min ago, stalled")):
        write_heartbeat(runs / "alive", {**beat, "last_step_time": now - silence})
        assert main(["runs"]) == 0
        (line,) = [each for each in capsys.readouterr().out.splitlines() if "alive" in each]
        assert said in line and ("stalled" in line) == (silence > 60)
    write_heartbeat(runs / "alive", {**beat, "steps_per_second": 0.02, "last_step_time": now - 90})
    assert main(["runs", "--json"]) == 0
    found = {each["run"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["alive"]["is_stalled"] is False  # its steps take 50 s each
    assert abs(found["alive"]["last_step"] - (now - 90)) < 1 and not found["done"]["is_stalled"]
    write_heartbeat(runs / "alive", {**beat, "last_step_time": "soon"})
    assert main(["runs", "--json"]) == 0
    found = {each["run"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["alive"]["last_step"] is None


def test_json(runs, capsys):
    assert main(["runs", str(runs), "--json"]) == 0
    found = {each["run"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["alive"]["steps_per_second"] == 3.5 and found["alive"]["step"] == 7
    assert found["deep/er/bad"]["failure"] == "stage 1 failed"
    assert found["killed"]["status"] == "died" and found["killed"]["host"] is None
    assert abs(found["alive"]["seen"] - time.time()) < 60


def test_a_run_itself_and_a_heartbeat_that_is_damaged(runs, capsys):
    (runs / "killed" / HEARTBEAT).write_text("{")
    assert main(["runs", str(runs / "killed"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["run"], found["status"]) == (".", "died")


def test_no_directory_is_one_line(tmp_path, capsys):
    assert main(["runs", str(tmp_path / "absent")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "expected a directory with runs in it" in error

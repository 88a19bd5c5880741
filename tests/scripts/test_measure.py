"""Rows are measured at one commit, and what others took meanwhile is not taken for their own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from naspipe.config.errors import ConfigError
from scripts import measure
from scripts.measure import MORE, ROOT, ROWS, Seconds, commit_of, run_one

SPIN = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass\n"


def test_scripts_that_rows_name_are_there():
    commands = [command for row in (ROWS | MORE).values() for command in row]
    assert all((ROOT / "scripts" / command.split()[0]).exists() for command in commands)
    assert len(set(commands)) == len(commands)


def test_load_is_split_by_whose_it_is():
    before = Seconds(at=100.0, busy=50.0, stolen=2.0, own=7.0)
    after = Seconds(at=110.0, busy=68.0, stolen=3.0, own=22.0)
    assert after.load_since(before) == {
        "seconds": 10.0, "own_processors": 1.5, "other_processors": 0.3, "stolen_processors": 0.1,
    }  # fmt: skip


def test_a_run_says_how_it_ended_and_what_it_took(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/spin.py").write_text(SPIN + "raise SystemExit(3)")
    found = run_one("spin.py --twice", tmp_path)
    assert found["command"] == "scripts/spin.py --twice" and found["status"] == 3
    assert found["own_processors"] * found["seconds"] >= 0.35
    assert found["seconds"] >= 0.4 and found["other_processors"] < (os.cpu_count() or 1)


def test_the_machines_processors_are_counted():
    before = Seconds.now()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    assert Seconds.now().busy - before.busy >= 0.25


def git(path: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, *words], cwd=path, check=True, capture_output=True)


def test_results_may_change_and_code_may_not(tmp_path):
    (tmp_path / "artifacts").mkdir()
    for name in ("code.py", "artifacts/row.json"):
        (tmp_path / name).write_text("1")
    for words in (["init"], ["add", "."], ["commit", "-m", "one"]):
        git(tmp_path, *words)
    (tmp_path / "artifacts/row.json").write_text("2")
    commit = commit_of(tmp_path)
    assert len(commit) == 40
    (tmp_path / "code.py").write_text("2")
    with pytest.raises(ConfigError, match=r"found code\.py changed; commit it, or use a fresh"):
        commit_of(tmp_path)


def test_a_row_is_kept_beside_the_others(tmp_path, monkeypatch):
    """And the exit status says that a script failed."""
    monkeypatch.setattr(measure, "ROWS", {"one": ("a.py",), "two": ("b.py", "c.py")})
    monkeypatch.setattr(measure, "commit_of", lambda root: "ab" * 20)
    load = dict.fromkeys(("own_processors", "other_processors", "stolen_processors"), 0.5)
    monkeypatch.setattr(
        measure, "run_one",
        lambda command: {"command": command, "status": int(command == "c.py"), "seconds": 1.0}
        | load,
    )  # fmt: skip
    output = tmp_path / "measured.json"
    assert measure.main(["one", "--output", str(output)]) == 0
    assert measure.main(["two", "--output", str(output)]) == 1
    rows = json.loads(output.read_text())["rows"]
    assert [len(rows[row]["runs"]) for row in ("one", "two")] == [1, 2]
    assert rows["two"]["commit"] == "ab" * 20
    assert all(row["environment"]["hardware"]["cores"] for row in rows.values())


def test_an_unknown_row_is_one_line(capsys):
    with pytest.raises(SystemExit):
        measure.main(["speeds"])
    assert "expected rows among bits, memory" in capsys.readouterr().err.splitlines()[-1]

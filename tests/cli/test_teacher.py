"""``naspipe train --teacher``: a subnet of a run teaches another run, also after a resume."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from naspipe.cli.main import main
from naspipe.store.compare import compare_runs
from naspipe.store.run_directory import RunDirectory
from tests.cli.test_resume import RUN, start, wait_for


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("teacher") / "run"
    assert main([*RUN, "--seed", "8", "--steps", "6", "--run-dir", str(path)]) == 0
    return path


def test_it_teaches_and_a_resume_finds_it_again(tmp_path: Path, teacher: Path) -> None:
    taught = ["--teacher", str(teacher), "--teacher-subnet", "first"]
    assert main([*RUN, *taught, "--run-dir", str(tmp_path / "whole")]) == 0
    path = tmp_path / "ended"
    how = ["--stages", "2", "--checkpoint-every", "5", "--set", "window=4"]
    with start(path, *taught, *how) as launcher:
        wait_for(path / "losses.jsonl", 8)
        launcher.signal(signal.SIGTERM)
        ended, said = launcher.join(20), launcher.said
    assert ended == 143 and f"--resume {path}" in said, said
    assert main(["train", "--resume", str(path), "--stages", "1", "--quiet"]) == 0
    (comparison,) = compare_runs([tmp_path / "whole", path])
    assert comparison.is_identical, str(comparison)
    assert main(["verify", str(path), "--steps", "all"]) == 0
    definition = RunDirectory(path).read_manifest()["definition"]
    assert (
        definition["teacher"]
        == RunDirectory(path / "teacher").read_manifest()["definition"]["weights"]
    )


def test_another_teacher_is_another_run(tmp_path: Path, teacher: Path) -> None:
    for subnet in ("first", "last"):
        taught = ["--teacher", str(teacher), "--teacher-subnet", subnet, "--steps", "2"]
        assert main([*RUN, *taught, "--run-dir", str(tmp_path / subnet)]) == 0
    (comparison,) = compare_runs([tmp_path / "first", tmp_path / "last"])
    assert "teacher" in comparison.reason


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--teacher", "nowhere"), "nowhere is not a run directory"),
        (("--teacher-subnet", "last"), "expected --teacher RUN with it"),
        (("--teacher-top", "3"), "--teacher-top: expected --teacher RUN with it"),
        (("--teacher", "TEACHER", "--teacher-subnet", "first", "--teacher-top", "-3"), "found -3"),
        (("--teacher", "TEACHER", "--teacher-subnet", "best"), "search"),
        (("--teacher", "TEACHER", "--teacher-subnet", "0,1"), "6 choices"),
        (("--teacher", "TEACHER", "--streams", "2"), "expected one stream to teach"),
        (("--teacher", "TEACHER", "--set", "passes=sandwich:1"), "is a teacher already"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    teacher: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    text: str,
) -> None:
    given = [str(teacher) if word == "TEACHER" else word for word in words]
    assert main([*RUN, *given, "--run-dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert text in said and len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()

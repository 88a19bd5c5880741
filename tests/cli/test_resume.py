"""``naspipe train --resume``: the same command line for a run that was ended, however it was."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from naspipe.cli.main import main
from naspipe.store.compare import compare_runs
from tests.forked import Fork

SMALL = "tests.faults.small_space"
RUN = [
    "train", f"{SMALL}:space", "--data", f"{SMALL}:batches", "--steps", "30", "--seed", "3",
    "--set", "lr=0.02", "--quiet",
]  # fmt: skip


def start(path: Path, *more: str) -> Fork:
    """The command as a process of its own, which is to be ended."""
    return Fork(main, [*RUN, "--run-dir", str(path), *more])


def wait_for(path: Path, lines: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} has not grown to {lines} lines")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    assert main([*RUN, "--run-dir", str(path)]) == 0
    return path


@pytest.mark.parametrize(("how", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_on_other_stages_after_a_signal(
    tmp_path: Path, whole: Path, how: signal.Signals, status: int
) -> None:
    path = tmp_path / "run"
    every = ["--checkpoint-every", "5", "--stages", "2", "--set", "window=4"]
    with start(path, *every) as launcher:
        wait_for(path / "losses.jsonl", 12)
        launcher.signal(how)
        ended, said = launcher.join(20), launcher.said
    assert ended == status, said
    if how is signal.SIGTERM:
        assert said.startswith("naspipe: interrupted by SIGTERM, with a checkpoint at subnet ")
        assert said.count("\n") == 1 and f"naspipe train --resume {path}" in said
        assert json.loads((path / "manifest.json").read_text())["status"] == "interrupted"
    assert main(["train", "--resume", str(path), "--stages", "3", "--quiet"]) == 0
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["execution"]["stages"] == 3 and manifest["execution"]["checkpoint_every"] == 5
    (comparison,) = compare_runs([whole, path])
    assert comparison.is_identical, str(comparison)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume", "nothing"], "nothing is not a run directory"),
        ([], "expected a SPACE, or --resume RUN"),
        (["cv.c3", "--resume", "WHOLE"], "SPACE: expected nothing beside --resume"),
        (["--resume", "WHOLE", "--seed", "4"], "--seed: expected nothing beside --resume"),
        (["--resume", "WHOLE", "--set", "lr=1"], "--set: expected settings of execution only"),
        (["cv.c3", "--policy", "asp", "--checkpoint-every", "5"], "expected csp or sequential"),
        (["cv.c3", "--checkpoint-every", "-1"], "checkpoint_every: expected 0 or more"),
    ],
)
def test_bad_resumes(
    whole: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["train", *(str(whole) if word == "WHOLE" else word for word in words)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_a_run_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    with start(path, "--steps", "4000", "--stages", "2") as launcher:
        wait_for(path / "losses.jsonl", 1)
        assert main(["train", "--resume", str(path)]) == 2
        assert f"found process {launcher.pid} at it" in capsys.readouterr().err

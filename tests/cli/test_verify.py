"""``naspipe verify``: a finished run next to a plain loop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from naspipe.cli.main import main
from naspipe.worker.layers.stored_layer import StoredLayer

SMALL = "tests.faults.small_space"
RUN = ["train", f"{SMALL}:space", "--data", f"{SMALL}:batches", "--steps", "6", "--quiet"]


def train(path: Path, *words: str) -> Path:
    assert main([*RUN, "--run-dir", str(path), *words]) == 0
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "run"
    return train(path, "--stages", "2", "--checkpoint-every", "2")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--steps", "3"), "verified: steps 0 to 2, 3 losses and 1 checkpoint, 0 bits differ"),
        (("--steps", "all"), "verified: steps 0 to 5, 6 losses and 3 checkpoints, 0 bits differ"),
        (
            ("--from", "4", "--steps", "9"),
            "verified: steps 4 to 5, 2 losses and 1 checkpoint, 0 bits differ",
        ),
    ],
)
def test_a_run_with_the_bits_of_the_plain_loop(
    finished: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert main(["verify", str(finished), *words]) == 0
    assert capsys.readouterr().out.strip() == said
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*")}


@pytest.mark.parametrize(
    "words",
    [
        ("--set", "passes=accumulate:2", "--groups", "2"),
        ("--streams", "2", "--set", "probes=best:2"),
    ],
    ids=["groups", "streams"],
)
def test_every_kind_of_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    run = train(tmp_path / "run", *words)
    capsys.readouterr()
    assert main(["verify", str(run), "--steps", "all", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 6 and found["checkpoints"] >= 1 and found["losses"] >= 6


def test_the_first_difference_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = StoredLayer.write

    def without_one(self, gradients, version, *rest, **more):  # type: ignore[no-untyped-def]
        kept = dict(list(gradients.items())[1:]) if version == 1 else gradients
        return write(self, kept, version, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(StoredLayer, "write", without_one)
        run = train(tmp_path / "run", "--checkpoint-every", "2")
    capsys.readouterr()
    assert main(["verify", str(run)]) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"{run}, after step 1: ") and "differs: the plain loop has" in said
    assert main(["verify", str(run), "--from", "subnet-000000004", "--steps", "2"]) == 0
    (run / "checkpoints/subnet-000000002").rename(run / "moved")
    assert main(["verify", str(run)]) == 1
    said = capsys.readouterr().out
    assert f"{run}: the loss of step 2 differs: the plain loop has" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--from", "subnet-1"), "expected a checkpoint of this run, found 'subnet-1'; it has sub"),
        (("--from", "final"), "expected steps after step 6, found a run of 6 steps"),
        (("--steps", "few"), "--steps: expected all or a number of steps, 1 or more, found 'few'"),
    ],
)
def test_bad_input(
    finished: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["verify", str(finished), *words]) == 2
    found = capsys.readouterr().err
    assert said in found and found.count("\n") == 1


def test_what_cannot_be_compared_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path / "run", "--policy", "asp")
    capsys.readouterr()
    assert main(["verify", str(run)]) == 2
    assert capsys.readouterr().out.startswith("verified: no, because policy=asp leaves results")

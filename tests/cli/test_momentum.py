"""``naspipe train --momentum``: networks that learn from two views, also after a resume."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from naspipe.cli.main import main
from naspipe.store.compare import compare_runs
from naspipe.store.run_directory import RunDirectory
from tests.cli.test_resume import wait_for
from tests.forked import Fork

RUN = (
    "train", "moco-v3", "--data", "views:digits", "--momentum", "0.9:1", "--set",
    "data.batch_size=8", "--set", "data.batches=2", "--set", "passes=accumulate:4", "--quiet",
)  # fmt: skip


@pytest.mark.long
def test_a_resume_goes_on_with_both(tmp_path: Path) -> None:
    length = ("--steps", "12", "--data", "tests.cli.slow_digits:views")
    assert main([*RUN, *length, "--run-dir", str(tmp_path / "whole")]) == 0
    path = tmp_path / "ended"
    words = [*RUN, *length, "--run-dir", str(path), "--stages", "2", "--checkpoint-every", "2"]
    with Fork(main, words) as launcher:
        wait_for(path / "losses.jsonl", 8)
        launcher.signal(signal.SIGTERM)
        ended, said = launcher.join(20), launcher.said
    assert ended == 143 and f"--resume {path}" in said, said
    assert main(["train", "--resume", str(path), "--groups", "2", "--quiet"]) == 0
    for place in ("", "teacher"):
        (comparison,) = compare_runs([tmp_path / "whole" / place, path / place])
        assert comparison.is_identical, str(comparison)
    assert main(["compare", str(tmp_path / "whole"), str(path)]) == 0
    assert main(["verify", str(path), "--steps", "all"]) == 0
    manifest = RunDirectory(path).read_manifest()
    assert manifest["definition"]["momentum"]["without"] == ["predictor"]
    for place in ("", "teacher"):
        assert main(
            ["export", str(path / place), "--subnet", "last", "-o", str(tmp_path / f"out{place}")]
        ) == 0  # fmt: skip


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--momentum", "x"), "--momentum x: momentum.tau: expected a number, found 'x'"),
        (("--momentum", "0.9:2"), "momentum.end: expected 0 to 1, found 2.0"),
        (("--set", "momentum.lag=-1"), "momentum.lag: expected 0 or more, found -1"),
        (("--set", "momentum.mode=half"), "momentum.mode: expected train or eval"),
        (("--set", "momentum.without=stem"), "expected the last blocks of moco-v3"),
        (("--set", "norms=ordered"), "expected norms=deferred"),
        (("--set", "data.batches=3"), "expected passes=accumulate:6, for 2 views of 3"),
        (("--policy", "bsp"), "expected"),
        (("--data", "digits"), "expected --data views:NAME"),
        (("--data", "views:en-de-2k"), "expected views: before one of"),
        (("--set", "rule.projector=follows(0.1,1)"), "expected exact, frozen, lag(K) or every(M)"),
        (("--teacher", "nowhere"), "expected no momentum teacher beside it"),
    ],
)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    path = tmp_path / "run"
    assert main([*RUN, "--steps", "2", "--run-dir", str(path), *words]) == 2
    said = capsys.readouterr().err
    assert text in said and said.count("\n") == 1
    assert not path.exists()


def test_the_loss_wants_a_teacher(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in RUN if word not in ("--momentum", "0.9:1")]
    assert main([*words, "--steps", "2", "--run-dir", str(tmp_path / "run")]) == 2
    assert "loss Contrastive: expected a teacher" in capsys.readouterr().err

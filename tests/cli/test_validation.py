"""Validation from the command line: what names it, what it leaves, and where it is shown."""

from __future__ import annotations

import json

import pytest

from naspipe.cli.main import main
from naspipe.report.recorded import read_run
from naspipe.report.run_tables import run_tables
from naspipe.store.validations import read_validations
from tests.api.test_recording import scalars

SMALL = "tests.faults.small_space"
RUN = [
    "train", f"{SMALL}:space", "--data", f"{SMALL}:batches", "--validation", f"{SMALL}:held",
    "--steps", "12",
]  # fmt: skip


def test_a_recipe_the_command_and_a_resume_name_it(tmp_path, capsys):
    recipe, run = tmp_path / "mine.toml", tmp_path / "run"
    recipe.write_text("lr = 0.02\nvalidate_every = 2\nvalidate_subnets = 3\nvalidate_batches = 1\n")
    words = ["--recipe", str(recipe), "--validate-every", "6", "--tensorboard"]
    assert main([*RUN, *words, "--run-dir", str(run)]) == 0
    said = capsys.readouterr().err
    found = read_validations(run / "validation.jsonl")
    assert [each.sequence_id for each in found] == [6, 12]
    assert [len(each.subnets) for each in found] == [3, 3]
    scores = found[-1].scores
    assert (
        f"validation after 12 steps  loss {scores['loss']:.4f}  top1 {scores['top1']:.4f}" in said
    )
    tags = scalars(run / "tensorboard")
    assert [step for step, _ in tags["validation/loss"]] == [5, 11]
    assert tags["validation/loss"][-1][1] == pytest.approx(scores["loss"])
    tables = run_tables(read_run(run), "run")
    assert tables["validations"]["subnet"] == [5, 11]
    assert tables["validations"]["scores"]["top5"][-1] == scores["top5"]
    assert tables["numbers"]["validation_loss"] == scores["loss"]
    manifest = json.loads((run / "manifest.json").read_bytes())
    manifest["status"] = "running"  # as if it had been killed
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert main(["train", "--resume", str(run), "--validate-every", "3"]) == 0
    again = read_validations(run / "validation.jsonl")
    assert [each.sequence_id for each in again] == [6, 9, 12]
    assert [each for each in again if each.sequence_id != 9] == found


def test_a_damaged_file_is_named(tmp_path, capsys):
    run = tmp_path / "run"
    assert main([*RUN, "--validate-every", "12", "--run-dir", str(run)]) == 0
    (run / "validation.jsonl").write_text("{}\n")
    assert main(["report", str(run)]) == 2
    assert "validation.jsonl:1: expected a validation" in capsys.readouterr().err

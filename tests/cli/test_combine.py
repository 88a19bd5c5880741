"""``naspipe combine``: from the runs of student blocks to one network, without any Python."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import naspipe as npp
from naspipe.cli.distill_sources import read_distilled
from naspipe.cli.main import main
from naspipe.data import open_data
from tests.cli.refusals import expect

OWN = "tests.cli.own_students"
FEW = ["--calibrate", "2", "--validate", "2", "--quiet"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("teacher") / "run"
    words = ["train", "vgg8", "--data", "digits", "--set", "data.batch_size=8", "--steps", "6"]
    assert main([*words, "--quiet", "--run-dir", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def distilled(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Path:
    """Three blocks, of which the first has two paths."""
    path = tmp_path_factory.mktemp("distilled") / "run"
    words = ["distill", str(teacher), f"{OWN}:students", "--cuts", "2,4", "--steps", "12"]
    assert main([*words, "--quiet", "--run-dir", str(path)]) == 0
    return path


@pytest.fixture
def run(tmp_path: Path, distilled: Path) -> Path:
    """A copy, to write into."""
    return Path(shutil.copytree(distilled, tmp_path / "run"))


def combine(run: Path, *words: str) -> int:
    return main(["combine", str(run), *FEW, *words])


def scores_of(run: Path, name: str) -> list[list[tuple[tuple[int, ...], float]]]:
    """Choices and score of every path of every block."""
    found = read_distilled(run, None).found.ratings(name)
    return [[(each.choices, each.scores.loss) for each in rating.candidates] for rating in found]


def choices_in(out: str) -> str:
    (line,) = [line for line in out.splitlines() if line.startswith("choices ")]
    return line.removeprefix("choices ")


def test_the_same_on_any_stages_and_as_from_python(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for stages in ("1", "2"):
        out = tmp_path / f"out-{stages}"
        assert combine(run, "--stages", stages, "--name", f"on-{stages}", "-o", str(out)) == 0
        said.append(capsys.readouterr().out)
        assert said[-1].splitlines()[-1] == str(out)
    assert choices_in(said[0]) == choices_in(said[1])
    assert scores_of(run, "on-1") == scores_of(run, "on-2")
    files = [tmp_path / f"out-{stages}" / "model.safetensors" for stages in (1, 2)]
    assert files[0].read_bytes() == files[1].read_bytes()

    found = read_distilled(run, None).found
    held_out = open_data("digits", batch_size=8, split="valid")
    ratings = npp.rate_blocks(found, held_out, calibrate=2, validate=2, name="python")
    assert scores_of(run, "python") == scores_of(run, "on-1")
    best = npp.combine_blocks(ratings)
    assert choices_in(said[0]) == ";".join(",".join(map(str, own)) for own in best.choices)
    whole = npp.validate_blocks(found, best.choices, held_out, calibrate=2, validate=2)
    assert f"the network: loss {whole.loss:.4f}  top-1 {whole.top1 * 100:.2f}" in said[0]


def test_limits_and_ratings_that_are_there(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other limits need no new ratings; the table says which place a path has in its block."""
    assert main(["combine", str(run), *FEW[:-1]]) == 0
    said = capsys.readouterr()
    free = choices_in(said.out)
    assert said.err.splitlines()[-2:] == [
        "naspipe: rated; --ratings 1 takes these again",
        f"next: naspipe export {run} --subnet '{free}' -o DIR",
    ]
    assert f"paths of {run}  4/4  block 2" in said.err
    costs = [
        sum(rating.ranked()[0].cost[at] for rating in read_distilled(run, None).found.ratings())
        for at in (0, 1)
    ]
    for option, cost in zip(("--max-flops", "--max-params"), costs, strict=True):
        assert combine(run, "--ratings", "newest", option, str(int(cost) - 1)) == 0
        out = capsys.readouterr().out
        first = out.splitlines()[1].split()
        assert choices_in(out) != free and first[:3] == ["0", "2", "2"]
    assert len(list(run.glob("block-*/search-*"))) == 3
    assert main(["export", str(run), "--subnet", "best", "-o", str(run / "best")]) == 0


def test_some_paths_by_a_measure_of_ones_own(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measures = ["--measure", f"{OWN}:far", "--last-measure", "l2"]
    assert combine(run, "--budget", "1", "--seed", "2", *measures) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in out[1:4]] == ["1", "1", "1"]
    assert [line.split()[-2] for line in out[1:4]] == ["far", "far", "l2_distance"]
    definition = json.loads((run / "block-0" / "search-1" / "manifest.json").read_text())
    assert definition["definition"]["seed"] == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--max-params", "few"], "--max-params: expected a number such as 25M"),
        (["--max-latency-ms", "-1"], "--max-latency-ms: expected a positive number"),
        (["--ratings", "newest"], "expected a finished search, found none"),
        (["--ratings", "half"], "search-half is no search"),
        (["--ratings", "1", "--last-measure", "l2"], "--last-measure: expected nothing about"),
        (["--onnx"], "--onnx: expected -o DIR with it"),
        (["--measure", "l3"], "expected l1, l2, loss or a function, found 'l3'"),
        (["--measure", f"{OWN}:nobody"], "expected module:attribute, importable"),
        (["--budget", "0"], "budget: expected 1 or more, found 0"),
        (["--budget", "1", "--strategy", "best"], "unknown strategy 'best'"),
        (["--name", "a/b"], "--name 'a/b': expected letters"),
        (["--validate", "9999"], "validate: expected at most"),
        (["--stages", "0"], "stages: expected 1 or more"),
        (["-o", "FULL"], "expected a new or empty directory"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_written(
    run: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    before = sorted(run.rglob("*"))
    words = [str(run) if word == "FULL" else word for word in words]
    assert main(["combine", str(run), *words]) == 2
    said = capsys.readouterr()
    expect(said.err, text)
    assert said.out == "" and said.err.count("\n") == 1 and sorted(run.rglob("*")) == before


def test_what_is_no_distillation_or_fits_no_limit(
    tmp_path: Path, teacher: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert combine(run, "--max-params", "1") == 2
    line = capsys.readouterr().err
    assert "found the cheapest at" in line and line.count("\n") == 1
    assert combine(run, "--ratings", "newest") == 0  # they are kept
    capsys.readouterr()
    found = read_distilled(run, None).found
    python = tmp_path / "python"
    npp.distill_blockwise(
        found.teachers, [run.space for run in found.blocks], found.data, steps=1, run_dir=python
    )
    for path, text in (
        (teacher, "block-0 is not a run directory"),
        (tmp_path / "nowhere", "is not a run directory"),
        (python, "was not started by `naspipe distill`: rate and combine its blocks with"),
    ):
        assert combine(path) == 2
        line = capsys.readouterr().err
        assert text in line and line.count("\n") == 1

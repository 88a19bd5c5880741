"""``naspipe search`` as a user runs it: tables, files, exports, and one line for bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import naspipe
from naspipe.cli.main import main
from naspipe.search.search_directory import SearchDirectory
from naspipe.store.run_directory import read_heartbeat
from naspipe.streams.stream_file import write_stream
from tests.search import own

OWN = ["--space", "tests.search.own:space", "--data", "tests.search.own:batches"]
HELD = ["--validation", "tests.search.own:held"]
SMALL = ["--budget", "9", "--calibrate", "1", "--validate", "2", "--quiet"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parent.parent.parent)
        path = tmp_path_factory.mktemp("search") / "run"
        naspipe.train(
            own.space, own.batches, own.loss, steps=12, seed=1, run_dir=path, sampler="uniform"
        )
        yield path


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent.parent)
    return Path(shutil.copytree(trained, tmp_path / "run"))


def refusal(run, capsys, *words):
    before = sorted(run.rglob("*"))
    assert main(["search", str(run), *OWN, *HELD, *SMALL, *words]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1, output
    assert output.err.startswith("naspipe: ")
    assert sorted(run.rglob("*")) == before, "nothing is left behind"
    return output.err


def test_search_and_export_the_best(run, tmp_path, capsys):
    command = ["search", str(run), *OWN, *HELD, *SMALL, "--top", "3", "--latency", "measured"]
    assert main([*command, "--stages", "2"]) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert lines[-1] == str(run / "search-1") and lines[0].startswith("best by loss")
    search = SearchDirectory(run / "search-1").read()
    best = search.ranked()
    assert len(search.candidates) == 9
    assert read_heartbeat(search.path)["step"] == read_heartbeat(search.path)["steps"] == 9
    capsys.readouterr()
    assert main(["runs", str(run), "--json"]) == 0
    listed = {each["run"]: each for each in json.loads(capsys.readouterr().out)}
    assert listed["search-1"]["status"] == "complete" and listed["search-1"]["steps"] == 9
    assert [line.split()[0] for line in lines[2:5]] == [str(each.sequence_id) for each in best[:3]]
    assert len(search.manifest["definition"]) > 8
    measured = json.loads((run / "search-1/manifest.json").read_text())["latency_ms"]
    assert set(measured) == {str(each.sequence_id) for each in best[:3]}
    assert main(["export", str(run), "--subnet", "best", "-o", str(tmp_path / "out"), *OWN]) == 0
    model = json.loads((tmp_path / "out/model.json").read_text())
    assert tuple(model["choices"]) == best[0].choices


def test_the_same_search_again_under_another_name(run, capsys):
    for name, stages in (("a", "1"), ("b", "3")):
        command = ["search", str(run), *OWN, *HELD, *SMALL, "--name", name, "--stages", stages]
        assert main([*command, "--strategy", "random", "--seed", "5", "--score", "top1"]) == 0
    one, other = ((run / f"search-{name}/candidates.jsonl").read_bytes() for name in "ab")
    assert one == other


def test_a_search_by_a_sum_shows_its_parts(run, capsys):
    command = ["search", str(run), *OWN, *HELD, *SMALL, "--score", "loss+naswot", "--top", "2"]
    assert main(command) == 0
    title, head, row, *_ = capsys.readouterr().out.splitlines()
    assert title.startswith("best by loss+naswot")
    assert head.split()[:6] == ["subnet", "loss", "top-1", "top-5", "naswot", "combined"]
    best = SearchDirectory(run / "search-1").read().ranked()[0]
    assert row.split()[0] == str(best.sequence_id)
    assert row.split()[5] == f"{best.scores.combined:.3f}"


def test_strategies_of_others_and_given_subnets(run, tmp_path, capsys):
    listed = [(0, 1, 2, 3), (3, 2, 1, 0)]
    write_stream(tmp_path / "listed.jsonl", listed)
    strategies = [f"file:{tmp_path / 'listed.jsonl'}", "tests.search.test_strategies:make"]
    for name, strategy in zip("ab", strategies, strict=True):
        words = ["--strategy", strategy, "--name", name, "--budget", "2"]
        assert main(["search", str(run), *OWN, *HELD, *SMALL, *words]) == 0
    found = [SearchDirectory(run / f"search-{name}").read().candidates for name in "ab"]
    assert [each.choices for each in found[0]] == listed
    assert found[1][0].choices == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "0"], "--budget: expected 1 or more, found 0"),
        (
            ["--validate", "0"],
            "expected a number of held-out batches, as these data do not say how",
        ),
        (["--calibrate", "-1"], "--calibrate: expected 0 or more"),
        (["--top", "0"], "--top: expected 1 or more"),
        (["--strategy", "clever"], "unknown strategy 'clever': expected random"),
        (["--score", "beauty"], "unknown score 'beauty': expected loss"),
        (["--score", "loss+bleu"], "or a sum of different ones without bleu, as in loss+naswot"),
        (["--score", "bleu"], "BLEU: expected translation data"),
        (["--set", "population=x"], "expected KEY=NUMBER"),
        (["--set", "colour=3"], "strategy evolution: expected population"),
        (["--max-params", "10"], "no subnet within the limits"),
        (["--max-params", "few"], "--max-params: expected a number such as 25M"),
        (["--max-latency-ms", "nan"], "--max-latency-ms: expected a positive number"),
        (["--latency", "guessed"], "--latency: expected profile or measured"),
        (["--name", "../x"], "expected letters, digits, points, - and _"),
        (["--stages", "99"], "99 stages for 6 blocks"),
        (["--data", "tests.search.own:others"], "expected the run's own data"),
        (["--space", "tests.equivalence.spaces:mixed"], "expected a naspipe.Space"),
        (["--strategy", "nni:DARTS", "--max-params", "9k"], "trains a supernet of its own"),
        (["--strategy", "nni:TPE", "--set", "population=9"], "one of NNI's with limits, or your"),
        (["--strategy", "file:nowhere.jsonl"], "nowhere.jsonl: expected a subnet list"),
    ],
)
def test_one_line_for_bad_input(run, capsys, words, said):
    assert said in refusal(run, capsys, *words)


def test_one_line_for_a_bad_run(run, tmp_path, capsys):
    assert main(["search", str(tmp_path / "nothing"), *OWN]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    (run / "search-1").mkdir()
    assert "there is such a search already" in refusal(run, capsys, "--name", "1")
    (run / "search-1/manifest.json").write_text("{}")
    assert main(["export", str(run), "--subnet", "best", "-o", str(tmp_path / "o"), *OWN]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    shutil.rmtree(run / "checkpoints")
    assert "expected a checkpoint to take weights from" in refusal(run, capsys)


def test_own_data_must_say_what_is_held_out(run, capsys):
    assert main(["search", str(run), *OWN, *SMALL]) == 2
    assert "give --validation MODULE:FUNCTION" in capsys.readouterr().err


def test_a_damaged_line_is_named(run, tmp_path, capsys):
    assert main(["search", str(run), *OWN, *HELD, *SMALL]) == 0
    lines = run / "search-1/candidates.jsonl"
    lines.write_text(lines.read_text().replace('"subnet": 4', '"subnet": 5', 1))
    capsys.readouterr()
    assert main(["export", str(run), "--subnet", "best", "-o", str(tmp_path / "o"), *OWN]) == 1
    assert "candidates.jsonl:5: expected subnet 4" in capsys.readouterr().err

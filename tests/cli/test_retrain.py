"""``naspipe retrain`` as a user runs it: bits of plain loops, nothing twice, and bad input."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from pathlib import Path

import pytest

import naspipe
from naspipe.api.retraining import workload_alone
from naspipe.cli.main import main
from naspipe.config.errors import UsersCodeError
from naspipe.search.retrained import chosen, read_retrained
from naspipe.search.search_directory import find_search
from naspipe.streams.stream_file import read_stream
from tests.equivalence.harness import assert_same_bits, plain_loop
from tests.search import own

OWN = ["--space", "tests.search.own:space", "--data", "tests.search.own:batches"]
HELD = ["--validation", "tests.search.own:held"]
FEW = ["--steps", "6", "--best", "2", "--others", "2", "--validate", "2", "--quiet"]


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parent.parent.parent)
        path = tmp_path_factory.mktemp("retrain") / "run"
        run = naspipe.train(
            own.space, own.batches, own.loss, steps=12, seed=1, run_dir=path, lr=0.02,
            progress=False,
        )  # fmt: skip
        for name in ("old", "new"):
            naspipe.search_subnets(
                run, own.batches, own.loss, held_out=own.held, budget=9, strategy="random",
                seed=len(name), name=name, progress=False,
            )  # fmt: skip
        yield path


@pytest.fixture
def run(searched, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent.parent)
    return Path(shutil.copytree(searched, tmp_path / "run"))


def test_subnets_alone_have_the_bits_of_plain_loops(run, capsys):
    assert main(["retrain", str(run), *OWN, *HELD, *FEW, "--stages", "2"]) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[-1] == str(run / "search-new")
    assert output[0].startswith("alone for 6 steps, seed 1; 2 held-out batches")
    assert "Kendall's tau with loss alone" in " ".join(output)
    search = find_search(run)
    retrained = read_retrained(search)
    assert [each.subnet for each in retrained] == [n.sequence_id for n in chosen(search, 2, 2)]
    assert len(retrained) == 4
    assert [line.split()[0] for line in output[2:6]] == [str(each.subnet) for each in retrained]
    for each in retrained:
        alone = naspipe.Run(own.space, search.path / each.run)
        assert read_stream(alone.directory.stream) == [search.candidates[each.subnet].choices] * 6
        oracle = plain_loop(
            own.space, own.batches, own.loss, alone, seed=1, optimizer="SGD", lr=0.02
        )
        assert_same_bits(alone, oracle)


def test_the_same_scores_on_any_number_of_stages_and_from_python(run, tmp_path):
    other = Path(shutil.copytree(run, tmp_path / "other"))
    assert main(["retrain", str(run), *OWN, *HELD, *FEW, "--stages", "3"]) == 0
    found = naspipe.retrain_subnets(
        naspipe.Run(own.space, other), own.batches, own.loss, steps=6, best=2, others=2,
        held_out=own.held, validate=2, progress=False,
    )  # fmt: skip
    assert found == read_retrained(find_search(run)) == read_retrained(find_search(other))


def test_what_is_there_is_not_trained_again_and_more_is_added(run, capsys):
    command = ["retrain", str(run), *OWN, *HELD, *FEW]
    assert main(command) == 0
    search = find_search(run)
    lines = (search.path / "retrained.jsonl").read_bytes()
    before = {path: path.stat().st_mtime_ns for path in search.path.rglob("*")}
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in search.path.rglob("*")} == before
    assert main([*command, "--others", "7"]) == 0
    assert (search.path / "retrained.jsonl").read_bytes().startswith(lines)
    assert len(read_retrained(search)) == len(search.ranked())
    assert main([*command, "--seed", "5", "--others", "0", "--search", "old"]) == 0
    old = read_retrained(find_search(run, "old"))
    assert {each.terms.seed for each in old} == {5} and len(old) == 2
    manifest = naspipe.Run(own.space, run / "search-old" / old[0].run).manifest
    assert (manifest["definition"]["seed"], manifest["definition"]["steps"]) == (5, 6)


def test_what_others_judged_is_judged_again(run):
    asked = {"steps": 6, "best": 1, "others": 1, "validate": 2, "progress": False}
    found = [
        naspipe.retrain_subnets(
            naspipe.Run(own.space, run), own.batches, own.loss, held_out=held_out, **asked
        )
        for held_out in (own.held, own.others, own.held)
    ]
    assert found[0] == found[2] != found[1]
    assert len(read_retrained(find_search(run))) == 4
    assert len(list(run.glob("search-new/alone-*/subnet-*"))) == 2, "trained once"


@pytest.mark.parametrize(
    ("held_out", "said"), [([1, 2], "expected a function of"), (lambda s, n: 1 / 0, "division")]
)
def test_what_judges_is_tried_before_anything_is_trained(run, held_out, said):
    with pytest.raises((naspipe.ConfigError, UsersCodeError), match=said):
        naspipe.retrain_subnets(
            naspipe.Run(own.space, run), own.batches, own.loss, held_out=held_out, validate=1,
            steps=6, progress=False,
        )  # fmt: skip
    assert not list(run.glob("search-new/alone-*"))


def test_a_subnet_that_diverges_stops_no_other_one(run):
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["definition"]["recipe"]["lr"] = 1e4
    (run / "manifest.json").write_text(json.dumps(manifest))
    found = naspipe.retrain_subnets(
        naspipe.Run(own.space, run), own.batches, own.loss, held_out=own.held, validate=2,
        steps=40, best=2, others=2, progress=False,
    )  # fmt: skip
    assert len(found) == 4 and any(math.isnan(each.scores.loss) for each in found)
    assert found == read_retrained(find_search(run))


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ({"passes": "fair"}, "one"), ({"passes": "sandwich:2"}, "one"),
        ({"passes": "subnets:2"}, "one"), ({"passes": "accumulate:2"}, "accumulate:2"),
        ({"passes": "accumulate:2", "probes": "best:2"}, "accumulate:2"),
    ],
)  # fmt: skip
def test_steps_of_several_subnets_become_steps_of_one(tmp_path, recipe, expected):
    run = naspipe.train(
        own.space, own.batches, own.loss, steps=2, seed=1, run_dir=tmp_path / "run",
        sampler="fair", progress=False, recipe=recipe,
    )  # fmt: skip
    found = workload_alone(run, (0, 1, 2, 3), own.batches, own.loss, steps=3)
    assert (found.recipe.passes, found.recipe.probes) == (expected, "none")


def test_a_warm_up_that_never_ends_is_refused(tmp_path):
    run = naspipe.train(
        own.space, own.batches, own.loss, steps=4, seed=1, run_dir=tmp_path / "run",
        progress=False, warmup_steps=3,
    )  # fmt: skip
    with pytest.raises(naspipe.ConfigError, match="warmup_steps=3: expected at most"):
        workload_alone(run, (0, 1, 2, 3), own.batches, own.loss, steps=2)


class Interrupts(naspipe.Observer):
    """Ctrl-C behind some losses."""

    def __init__(self, count):
        self.count = count

    def on_loss(self, *given, **more):
        self.count -= 1
        if not self.count:
            os.kill(os.getpid(), signal.SIGINT)


def test_what_was_interrupted_goes_on(run, tmp_path, monkeypatch):
    other = Path(shutil.copytree(run, tmp_path / "other"))
    terms = {"steps": 40, "best": 1, "others": 2, "held_out": own.held, "validate": 2}
    interrupted, whole = naspipe.Run(own.space, run), naspipe.Run(own.space, other)
    monkeypatch.chdir(tmp_path)
    relative = naspipe.Run(own.space, Path("run"))
    with pytest.raises(naspipe.RunInterruptedError, match="go on with the same naspipe retrain"):
        naspipe.retrain_subnets(relative, own.batches, own.loss, observer=Interrupts(30), **terms)
    assert not read_retrained(find_search(run))
    found = [
        naspipe.retrain_subnets(each, own.batches, own.loss, progress=False, **terms)
        for each in (interrupted, whole)
    ]
    assert found[0] == found[1] and len(found[0]) == 3
    runs = [naspipe.Run(own.space, run / "search-new" / each.run) for each in found[0]]
    assert all(each.manifest["life"]["generation"] == 1 for each in runs)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "0"], "--steps: expected 1 or more of each subnet, found 0"),
        (["--best", "0", "--others", "0"], "expected one subnet or more to retrain"),
        (["--best", "-1"], "expected one subnet or more to retrain"),
        (["--search", "none"], "search-none is no search"),
        (["--stages", "99"], "99 stages for 6 blocks"),
        (["--validate", "-3"], "expected 1 or more"),
        (["--data", "tests.search.own:others"], "expected the run's own data"),
        (["--seed", "-1"], "seed: expected"),
    ],
)
def test_one_line_for_bad_input(run, capsys, words, said):
    before = sorted(run.rglob("*"))
    assert main(["retrain", str(run), *OWN, *HELD, *FEW, *words]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1, output
    assert output.err.startswith("naspipe: ") and said in output.err
    assert sorted(run.rglob("*")) == before, "nothing is left behind"


def test_a_run_without_a_search_is_told_how(run, capsys):
    for path in run.glob("search-*"):
        shutil.rmtree(path)
    assert main(["retrain", str(run), *OWN, *HELD, *FEW]) == 2
    assert "expected a finished search, found none; start naspipe search" in capsys.readouterr().err

"""The page's section about searches: its tables, and what a browser draws of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from naspipe.cli.main import main
from naspipe.config.errors import ConfigError
from naspipe.report.recorded import read_run
from naspipe.report.run_tables import run_tables
from naspipe.report.searches import search_tables, winning
from naspipe.search.retrained import Retrained, Terms, append_retrained
from naspipe.search.scores import Scores
from naspipe.search.search_directory import Candidate, Search, SearchDirectory
from naspipe.search.strategies import Cost
from naspipe.store.labels import Decided
from tests.report.browser import Browser, find_chromium
from tests.store.fake_run import FakeRun

JUDGED = [
    # loss, parameters
    (2.0, 100.0),
    (1.5, 300.0),
    (1.4, 200.0),
    (math.nan, 50.0),
    (1.3, 400.0),
    (1.3, 500.0),
]


def write_search(
    run: Path, name: str, finished: float = 1.0, status: str = "complete", score: str = "loss"
) -> Path:
    directory = SearchDirectory(run / f"search-{name}")
    directory.create()
    for number, (loss, params) in enumerate(JUDGED):
        scores = Scores(loss, math.nan, math.nan)
        if score != "loss":
            scores = scores._replace(naswot=100.0 * loss, combined=-loss)
        directory.append(Candidate(number, (number % 2, 1), scores, Cost(math.nan, params, 1.0)))
    definition = {"score": score, "strategy": "random"}
    directory.write_manifest({"status": status, "finished": finished, "definition": definition})
    return directory.path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return FakeRun().write(tmp_path / "run")


def test_scores_costs_and_fronts(run: Path) -> None:
    write_search(run, "old")
    write_search(run, "new", finished=2.0)
    write_search(run, "broken-off", finished=3.0, status="failed")
    new, old = search_tables(run, Decided())
    assert (new["name"], old["name"]) == ("new", "old")
    assert new["scores"]["loss"] == [2.0, 1.5, 1.4, None, 1.3, 1.3]
    assert new["costs"]["flops"] == [None] * 6
    assert new["fronts"] == {"flops": [], "params": [0, 1], "latency_ms": [1]}
    assert new["best"] == [1, 0], "each subnet once: only two differ"


def test_labels_stand_beside_choices_and_layers(run: Path) -> None:
    write_search(run, "1")
    decided = [[{"op0": ["0"]}, {"op0": ["1"]}], [{"op1": ["a"]}, {"op1": ["b"]}]]
    (found,) = search_tables(run, Decided(decided))
    assert found["choices"][:2] == ["0,1 op0=0 op1=b", "1,1 op0=1 op1=b"]
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "decided": decided}))
    labels = [each["label"] for each in run_tables(read_run(run), "run")["layers"]]
    assert labels == ["stem", "0.0 op0=0", "0.1 op0=1", "1.0 op1=a", "1.1 op1=b", "head"]


def test_a_damaged_search_is_named(run: Path) -> None:
    path = write_search(run, "1")
    lines = path / "candidates.jsonl"
    lines.write_text(lines.read_text().replace("[1, 1]", '["x"]', 1))
    with pytest.raises(ConfigError, match=r"search-1/candidates.jsonl:2: expected subnet 1"):
        search_tables(run, Decided())
    (path / "manifest.json").write_text(json.dumps({"format": 1, "status": "complete"}))
    with pytest.raises(ConfigError, match="damaged: expected a definition with a score"):
        search_tables(run, Decided())


LABELS = [[{"op0": ["skip"]}, {"op0": ["conv"]}], [{"op1": ["a"]}, {"op1": ["b"]}]]


def searched(*judged: tuple[tuple[int, ...], float], score: str = "loss") -> Search:
    """A search that judged these choices."""
    candidates = [
        Candidate(number, choices, Scores(loss, 1 - loss, math.nan), Cost(1.0, 1.0, 1.0))
        for number, (choices, loss) in enumerate(judged)
    ]
    return Search(Path(), {"definition": {"score": score}}, tuple(candidates))


def test_which_choices_win() -> None:
    judged = [((n % 2, n % 3), n % 2 + n % 3 / 10) for n in range(6)]
    (first, second), best = winning(searched(*judged), Decided())
    assert best == 5 and (first.name, second.name) == ("0", "1")
    zero, one = first.choices
    assert (zero.name, zero.judged, zero.best) == ("0", 0.5, 3 / 5)
    assert (one.name, one.judged, one.best) == ("1", 0.5, 2 / 5)
    assert zero.gain == pytest.approx(1.0) and one.gain == pytest.approx(-1.0)
    assert [choice.best for choice in second.choices] == [2 / 5, 2 / 5, 1 / 5]


def test_of_many_subnets_a_tenth_are_the_best_and_each_counts_once() -> None:
    judged = [((n % 5, n // 5), n / 100) for n in range(80)]
    decisions, best = winning(searched(*judged, *judged, score="top1"), Decided())
    assert best == 8
    assert {each.name: each.best for each in decisions[1].choices}["0"] == 5 / 8


def test_labels_are_the_decisions_where_there_are_any() -> None:
    judged = [((n % 2, 1), float(n)) for n in range(4)]
    (only,), _ = winning(searched(*judged), Decided(LABELS))
    assert only.name == "op0", "op1 is b in every subnet"
    assert [(each.name, each.judged) for each in only.choices] == [("conv", 0.5), ("skip", 0.5)]


def test_a_search_that_judged_nothing_has_no_winners(run: Path) -> None:
    assert winning(searched(), Decided()) == ([], 0)
    assert winning(searched(((0,), math.nan)), Decided()) == ([], 0)


def retrain(search: Path, count: int) -> None:
    """The first subnets, each a little better alone than the one before it."""
    for subnet in range(count):
        scores = Scores(2.0 - subnet / 10, 0.5, math.nan)
        append_retrained(search, Retrained(subnet, Terms(9, 1, "2 batches"), scores, "alone"))


def test_subnets_alone_stand_beside_inherited_scores(run: Path) -> None:
    path = write_search(run, "1")
    assert search_tables(run, Decided())[0]["alone"] is None
    retrain(path, 2)
    alone = search_tables(run, Decided())[0]["alone"]
    assert alone["subnets"] == [0, 1] and alone["ranks"] == [2, 1]
    assert alone["scores"] == {"loss": [2.0, 1.9], "top1": [0.5, 0.5], "top5": [None, None]}
    assert (alone["confidence"], alone["fewest"], alone["steps"]) == (None, 4, 9)
    (path / "retrained.jsonl").write_text("x\n")
    with pytest.raises(ConfigError, match=r"retrained.jsonl:1: expected a subnet that was"):
        search_tables(run, Decided())


@pytest.mark.skipif(find_chromium() is None, reason="needs chromium on PATH")
def test_winners_and_subnets_alone_in_a_browser(run: Path, tmp_path: Path) -> None:
    path = write_search(run, "1")
    with Browser(tmp_path / "profile") as browser:
        for count, said in ((0, "was trained alone yet"), (2, "say nothing"), (6, "tau with loss")):
            retrain(path, count)
            assert main(["report", str(run)]) == 0
            browser.open(run / "report.html")
            browser.wait_for("typeof naspipe !== 'undefined' && naspipe.isReady")
            hint = browser.evaluate("document.getElementById('alone-hint').textContent")
            assert said in hint
        drawn = browser.evaluate(
            "['winning', 'alone'].map((id) => document.getElementById(id).data[0])"
        )
        assert drawn[0]["x"] == ["0"] and drawn[0]["y"] == ["0", "1"]
        assert "of the best 2" in drawn[0]["hovertext"][0][0]
        assert drawn[1]["x"][0] == 2 and drawn[1]["text"][:2] == ["0", "1"]
        assert browser.evaluate("document.querySelectorAll('#retrained tbody tr').length") == 6
        assert browser.problems() == []


@pytest.mark.skipif(find_chromium() is None, reason="needs chromium on PATH")
def test_in_a_browser(run: Path, tmp_path: Path) -> None:
    write_search(run, "mine")
    assert main(["report", str(run)]) == 0
    with Browser(tmp_path / "profile") as browser:
        browser.open(run / "report.html")
        browser.wait_for("typeof naspipe !== 'undefined' && naspipe.isReady")
        drawn = browser.evaluate(
            "document.getElementById('found').data.map((trace) => [trace.name, trace.x, trace.y])"
        )
        assert drawn[0] == ["judged", [100, 300, 200, 400, 500], [2, 1.5, 1.4, 1.3, 1.3]]
        assert [name for name, _, _ in drawn] == ["judged", "front", "best"]
        assert drawn[2][1:] == [[300], [1.5]]
        rows = browser.evaluate("document.querySelectorAll('#best tbody tr').length")
        assert rows == 2
        (run / "search-mine").rename(tmp_path / "away")
        write_search(run, "sum", score="loss+naswot")
        assert main(["report", str(run)]) == 0
        browser.open(run / "report.html")
        browser.wait_for("typeof naspipe !== 'undefined' && naspipe.isReady")
        drawn = browser.evaluate(
            "[...document.getElementById('found').data.map((trace) => trace.y),"
            " document.getElementById('found').layout.yaxis.title.text]"
        )
        assert drawn[0] == [-2, -1.5, -1.4, -1.3, -1.3] and drawn[-1] == "loss+naswot"
        heads = browser.evaluate("document.querySelector('#best thead').innerText").split()
        assert heads[:4] == ["subnet", "loss", "NASWOT", "loss+naswot"]
        (run / "search-sum").rename(tmp_path / "away-too")
        assert main(["report", str(run)]) == 0
        browser.open(run / "report.html")
        browser.wait_for("typeof naspipe !== 'undefined' && naspipe.isReady")
        assert browser.evaluate("document.getElementById('search-section').hidden") is True
        assert browser.problems() == []

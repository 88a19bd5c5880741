"""``scripts/bench rules``: prices are over the runs that read nothing late, seed by seed."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from scripts.bench import rules as rule_prices
from scripts.paper.common import draw_to


def row(rule, seed, end, steps=50):
    return {
        "space": "cv.c3", "sampler": "uniform", "optimizer": "default", "rule": rule,
        "seed": seed, "steps": steps,
        "end": end, "means": [end + 1, end],
    }  # fmt: skip


ROWS = [row("exact", 0, 1.0), row("exact", 1, 2.0), row("lag(4)", 0, 1.1), row("lag(4)", 1, 2.0)]


def test_a_price_is_that_of_the_same_seed_and_steps(capsys):
    Console(width=100).print(rule_prices.table_of([*ROWS, row("exact", 0, 9.0, 75)]))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "lag(4)" in line]
    assert lines == [
        ["cv.c3", "uniform", "default", "lag(4)", "2", "1.5500", "+5.0%", "(+0.0%", "to", "+10.0%)"]
    ]


def test_what_is_known_is_not_trained_again(tmp_path, monkeypatch, capsys):
    trained = []

    def real_run(**job):
        trained.append((job["rule"], job["seed"]))
        return {"losses": [1.0] * job["steps"]}

    monkeypatch.setattr(rule_prices, "real_run", real_run)
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"rows": ROWS, "rates": []}))
    words = [
        "--spaces",
        "cv.c3",
        "--rules",
        "exact",
        "lag(4)",
        "--steps",
        "50",
        "--seeds",
        "0",
        "2",
    ]
    assert rule_prices.main([*words, "--output", str(path)]) == 0
    assert sorted(trained) == [("exact", 2), ("lag(4)", 2)]
    assert len(json.loads(path.read_text())["rows"]) == 6
    assert "-50.0%" not in capsys.readouterr().out
    assert (tmp_path / "cv.c3-uniform-default.png").stat().st_size > 1000


@pytest.mark.parametrize("rates", [[], [(2, 4.0), (4, 8.0)]])
def test_a_picture_has_a_line_for_each_rule(tmp_path, rates):
    speeds = [
        {"space": "cv.c3", "sampler": "uniform", "stages": n, "rule": rule, "steps_per_second": at}
        for n, at in rates for rule in ("exact", "lag(4)")
    ]  # fmt: skip
    seen = []

    def draw(figure):
        rule_prices.draw(ROWS, speeds, figure)
        seen.extend(len(axis.lines) for axis in figure.axes)

    draw_to(tmp_path / "x.png", draw)
    assert seen[1:] == ([2, 2, 2] if rates else [2])


def test_a_rule_is_as_fast_as_the_one_that_is_as_late():
    rules = [
        "exact",
        "lag(2)",
        "lag(2,momentum=0.5,predict)",
        "every(4,lr=2.0)",
        "lag(0..3,over=6)",
    ]
    assert [rule_prices.as_fast_as(rule) for rule in rules] == [
        "exact", "lag(2)", "lag(2)", "every(4)", "lag(0..3,over=6)"
    ]  # fmt: skip

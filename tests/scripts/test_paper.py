"""The scripts of the paper's evaluation: each writes what it says, and sees what does not hold."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

import search_spaces
from naspipe.streams.stream_file import write_stream
from scripts.paper import figure4, figure6, published, systems, table3, throughput
from scripts.paper.common import Options, real_run
from scripts.paper.summary import write_summary
from tests.search_spaces import chain

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "scripts/paper/run.py")]


def test_one_command_leaves_a_table_a_figure_and_a_line_in_the_summary(tmp_path):
    words = ["figure7", "--steps", "20", "--spaces", "cv.c3", "--stages", "1", "2", "--seeds", "1"]
    done = subprocess.run(
        [*COMMAND, *words, "--output", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "figure7/result.json").read_text())
    two = next(row for row in found["rows"] if (row["kind"], row["stages"]) == ("uniform", 2))
    assert two["busy_stages"] == pytest.approx(2 * (1 - two["bubble"]))
    assert 1 < two["speed_over_one_stage"] < 2
    with (tmp_path / "figure7/result.csv").open() as file:
        assert [row["stages"] for row in csv.DictReader(file)] == ["1", "1", "2", "2"]
    assert (tmp_path / "figure7/result.png").read_bytes().startswith(b"\x89PNG")
    summary = (tmp_path / "README.md").read_text()
    assert "| [figure7](figure7/) | `scripts/paper/run.py figure7 --steps 20" in summary
    assert "2.0 of 8" in summary, "the paper's value stands beside ours"


def test_a_name_that_is_none(tmp_path):
    done = subprocess.run([*COMMAND, "table9"], capture_output=True, text=True)
    assert done.returncode == 2 and "table9" in done.stderr


@pytest.mark.parametrize(
    ("speeds", "holds"), [((5.0, 4.0, 3.0, 2.0), True), ((5.0, 4.0, 4.0, 2.0), False)]
)
def test_throughput_must_fall_with_the_space(monkeypatch, speeds, holds):
    by_space = dict(zip(throughput.SPACES, speeds, strict=True))
    monkeypatch.setattr(
        throughput,
        "simulated",
        lambda space, _: {"kind": "simulated", "steps_per_second": by_space[space]},
    )
    result = throughput.run(Options(is_real=False))
    assert result.holds is holds
    assert ("not so" in result.headlines[0].ours) is not holds


@pytest.mark.long
def test_simulated_throughput_falls_for_real():
    result = throughput.run(Options(is_real=False, steps=60, seeds=1))
    assert result.holds, result.headlines


def row(policy, stages, bits, attempt=1):
    return {"policy": policy, "stages": stages, "attempt": attempt, "all_bits": bits,
            "last_loss": 1.0, "search_score": 2.0}  # fmt: skip


def test_verdicts_are_about_bits_not_about_printed_losses():
    same = [row("csp", n, "a") for n in (1, 2)]
    assert table3.verdict_of(same, 2).startswith("identical bits")
    other = [row("asp", 1, "a"), row("asp", 2, "b"), row("asp", 2, "c", 2)]
    said = table3.verdict_of(other, 2)
    assert said.startswith("2 different results of 2") and said.endswith("twice on 2 stages: "
                                                                         "different")  # fmt: skip


def test_table3_repeats_a_run_where_its_rule_or_its_steps_changed(tmp_path):
    path, case = tmp_path / "result.json", ("cv.c3", "csp", 2, 1, "lag(1,predict)")
    assert table3.kept(path, "tiny", 80) == {}
    known = row("csp", 2, "a") | {"space": "cv.c3", "rule": "lag(1,predict)"}
    path.write_text(json.dumps({"settings": {"scale": "tiny", "steps": 80}, "rows": [known]}))
    assert table3.kept(path, "tiny", 80) == {case: known}
    assert table3.kept(path, "tiny", 60) == table3.kept(path, "small", 80) == {}


def test_one_bit_of_one_loss_is_another_digest():
    assert table3.digest(["3f800000", "0"]) != table3.digest(["3f800001", "0"])


def test_smaller_batches_cost_throughput():
    speed = 2.0
    assert systems.samples_per_second("nlp.c1", speed, 192, 0.5) == pytest.approx(2 * 192)
    assert systems.samples_per_second("nlp.c1", speed, 96, 0.0) == pytest.approx(2 * 192)
    assert systems.samples_per_second("nlp.c1", speed, 96, 1.0) == pytest.approx(2 * 96)
    assert systems.samples_per_second("nlp.c1", speed, 0, 0.5) == 0


def test_the_summary_leaves_out_what_has_no_headlines(tmp_path):
    for name, content in (
        ("one", {"headlines": [{"what": "w", "ours": "o|", "paper": "p"}],
                 "command": "c", "kind": "real", "differs": "d"}),
        ("two", {"median": 1}),
        ("three", [1, 2]),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(content))
    write_summary(tmp_path)
    beside, _, others = (tmp_path / "README.md").read_text().partition("## Everything else")
    assert "| [one](one/) | `c` | w | o/ | p |" in beside.splitlines()
    assert "two/" not in beside and "three/" not in beside
    assert "two/" in others and "three/" in others and "one/" not in others


@pytest.mark.long
def test_a_real_run_reports_the_access_order_of_table_4(tmp_path):
    stream = tmp_path / "stream.jsonl"
    lines = [[0 if y in (2, 5) else y + 1] * 8 for y in range(6)]
    write_stream(stream, lines)
    found = real_run(
        space="scripts.paper.waiting:space", data="scripts.paper.waiting:batches", stages=2,
        steps=6, sampler=f"file:{stream}", layer="2.0", curve=True,
    )  # fmt: skip
    assert found["access_order"] == "2F-2B-5F-5B" == published.TABLE4["csp", 4][:11]
    assert len(found["seconds_of_loss"]) == len(found["losses"]) == 6
    with pytest.raises(RuntimeError, match="at most one stage per block"):
        real_run(space="scripts.paper.waiting:space", data="scripts.paper.waiting:batches",
                 stages=99, steps=1)  # fmt: skip


def test_who_reads_what_a_real_run_measured_finds_it(monkeypatch):
    found = real_run(
        space="scripts.paper.waiting:space", data="scripts.paper.waiting:batches", stages=2,
        steps=4, curve=True,
    )  # fmt: skip
    for module in (figure6, throughput):
        monkeypatch.setattr(module, "real_run", lambda **job: found)
    speed, once = found["passes_per_second"], Options(repetitions=1)
    assert speed > 0
    assert all(row["steps_per_second"] == speed for row in figure6.real("nlp.c3", once))
    (row,) = throughput.real(("nlp.c3",), once)
    assert row["whole_run"] == speed


def test_figure4_compares_systems_at_the_second_at_which_the_first_one_ends():
    flat = {name: {"0": [4.0, 3.0, 2.0, 1.0]} for name in ("naspipe", "gpipe")}
    rows = figure4.rows_of(
        "nlp.c3", "uniform", 2, flat, {"naspipe": [40.0, 50.0, 60.0], "gpipe": [25.0]}
    )
    ours, theirs = rows
    assert ours["at_seconds"] == theirs["at_seconds"] == 100 / 50.0
    assert ours["loss_then"] == ours["loss"] == 2.5
    assert theirs["seconds"] == 4.0 and theirs["loss_then"] == 3.5  # half of its steps are done


def test_figure4_knows_that_a_lag_grows():
    """Its first 100 steps are as slow as those without one."""
    flat = {name: {"0": [1.0] * 8} for name in ("naspipe", "naspipe, exact", "gpipe")}
    speeds = {"naspipe": [50.0], "naspipe, exact": [25.0], "gpipe": [40.0]}
    ours, exact, gpipe = figure4.rows_of("cv.c3", "uniform", 2, flat, speeds)
    assert (ours["seconds"], exact["seconds"], gpipe["seconds"]) == (6.0, 8.0, 5.0)
    assert figure4.growth("cv.c3", "naspipe") == 100 and not figure4.growth("nlp.c3", "naspipe")


def test_figure4_trains_what_gives_the_same_bits_once():
    keys = {
        name: figure4.key_of("cv.c3", "uniform", name, 2, 50)
        == figure4.key_of("cv.c3", "uniform", name, 4, 50)
        for name in figure4.SYSTEMS
    }
    assert [name for name, is_same in keys.items() if is_same] == ["naspipe", "naspipe, exact"]
    own = str(search_spaces.build("cv.c3", "tiny", chain.IMAGES).shared_rules["stem"])
    for name, rule in [("naspipe", own), ("naspipe, exact", "exact")]:
        key = figure4.causal_key("cv.c3", "uniform", rule, 50)
        assert figure4.key_of("cv.c3", "uniform", name, 2, 50) == key
    assert figure4.key_of("cv.c3", "uniform", "vpipe", 2, 50) == figure4.key_of(
        "cv.c3", "uniform", "gpipe", 2, 50
    )
    assert figure4.SYSTEMS["gpipe"].trained_job(4) == {"policy": "bsp", "bulk": 4, "stages": 1}
    assert figure4.SYSTEMS["pipedream"].trained_job(4)["stages"] == 4


def test_figure4_takes_the_curves_that_prices_have(tmp_path, monkeypatch):
    trained = []

    def real_run(**job):
        trained.append((job["policy"], job.get("rule"), job["seed"], job["stages"]))
        return {"losses": [1.0] * job["steps"]}

    monkeypatch.setattr(figure4, "real_run", real_run)
    monkeypatch.setitem(figure4.SEEDS, ("cv.c3", "spaced:8"), (0, 1))
    same = {"space": "cv.c3", "sampler": "spaced:8", "steps": 25, "means": [0.5]}
    rows = [
        {**same, "rule": figure4.default_rule("cv.c3"), "optimizer": "default", "seed": 0},
        {**same, "rule": "exact", "optimizer": "default", "seed": 1},
        {**same, "rule": "exact", "optimizer": "adam", "seed": 0},
        {**same, "rule": "lag(16)", "optimizer": "default", "seed": 1},
    ]
    losses, prices = tmp_path / "losses.json", tmp_path / "prices.json"
    prices.write_text(json.dumps({"rows": rows}))
    found = figure4.train_missing([("cv.c3", "spaced:8")], 25, losses, prices)
    causal = sorted((rule or "", seed) for policy, rule, seed, _ in trained if policy == "csp")
    assert causal == [("", 1), ("exact", 0)]
    assert found[figure4.causal_key("cv.c3", "spaced:8", "exact", 25)] == {"0": [1.0], "1": [0.5]}
    trained.clear()
    assert figure4.train_missing([("cv.c3", "spaced:8")], 25, losses, prices) == found
    assert not trained


def test_every_folder_of_results_has_a_line_of_its_own():
    written = (ROOT / "artifacts/README.md").read_text()
    assert "`?`" not in written, "say it in scripts/paper/summary.py"
    for folder in (ROOT / "artifacts").iterdir():
        assert not folder.is_dir() or f"[{folder.name}]({folder.name}/)" in written

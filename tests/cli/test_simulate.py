"""``naspipe simulate`` and ``naspipe plan``: figures, run directories, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from naspipe.api.simulate import Scenario
from naspipe.cli import main as cli
from naspipe.plan.costs import COLUMNS, CostTable, LayerCost
from naspipe.store.compare import RecordedRun
from naspipe.store.metrics import causal_bound, summarize
from tests.cli.refusals import MODULE

TABLE5 = ("nlp.c3", "--costs", "table5")
MINE = (f"{MODULE}:space", "--data", f"{MODULE}:data")


@pytest.fixture(autouse=True)
def _own_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(list(words)) == 0, capsys.readouterr().err
    output = capsys.readouterr()
    assert output.err == "" or (words[0] == "plan" and "--json" not in words)
    return output.out


def figures(out: str) -> dict[str, str]:
    """First words of each line to the rest; names are 20 columns wide."""
    return {line[:20].strip(): line[20:].strip() for line in out.splitlines()}


def test_the_figures_are_those_of_the_log_it_writes(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*TABLE5, "--stages", "3", "--steps", "40", "--sampler", "spaced:6", "--no-shared")
    out = figures(run(capsys, "simulate", *words, "--run-dir", "run"))
    recorded = RecordedRun(place / "run")
    summary = summarize(recorded.accesses, 3)
    assert out["bubble ratio"] == f"{summary.bubble_ratio:.3f}"
    assert out["causal bound"] == f"{causal_bound(recorded.accesses, 3):.3f}"
    assert out["subnets per second"] == f"{summary.passes_per_second:.3f}"
    assert {f"stage {stage}" for stage in range(3)} <= out.keys()
    assert recorded.manifest["status"] == "simulated"
    assert len(recorded.directory.stream.read_text().splitlines()) == 40
    assert recorded.manifest["measured"]["bubble_ratio"] == pytest.approx(summary.bubble_ratio)
    log = run(capsys, "log", "run", "--layer", "3.1").strip()
    users = log.split("-")[::2]
    assert users and log == "-".join(f"{u}-{u[:-1]}B" for u in users)


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", *MINE, "--steps", "20", "--stages", "2", "--memory-budget", "3x")
    out, found = figures(run(capsys, *words)), json.loads(run(capsys, *words, "--json"))
    assert out["cache hit rate"] == f"{found['hit_rate']:.1%}"
    assert (found["space"], found["costs"], found["stages"]) == ("mine", "profiled", 2)
    assert all(use["layer_bytes"] > 0 for use in found["uses"])


def test_a_space_of_ones_own_is_profiled(capsys: pytest.CaptureFixture[str]) -> None:
    out = figures(run(capsys, "simulate", *MINE, "--stages", "2", "--steps", "10"))
    assert float(out["subnets per second"]) > 0
    assert "activations" in out["stage 0"]


def test_streams_get_a_directory_each(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*TABLE5, "--order", "paper", "--steps", "8", "--streams", "2", "--seed", "5")
    run(capsys, "simulate", *words, "--run-dir", "both")
    for number in range(2):
        recorded = RecordedRun(place / "both" / f"stream-{number}")
        assert recorded.manifest["definition"]["seed"] == 5 + number
        assert {access.layer.stream for access in recorded.accesses} == {0}
    alone = ("--order", "paper", "--steps", "8", "--seed", "6", "--run-dir", "alone")
    run(capsys, "simulate", *TABLE5, *alone)
    files = [(place / name / "stream.jsonl").read_text() for name in ("both/stream-1", "alone")]
    assert files[0] == files[1]


def test_a_real_run_is_imitated(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = ("train", *MINE, "--steps", "12", "--stages", "2", "--run-dir", "real", "--quiet")
    run(capsys, *train)
    out = figures(run(capsys, "simulate", "--like", "real"))
    found = json.loads(run(capsys, "simulate", "--like", "real", "--json"))
    real = summarize(RecordedRun(place / "real").accesses, 2)
    assert out["bubble, real"] == f"{real.bubble_ratio:.3f}"
    assert found["tasks"] == 2 * 2 * 12 and 0 <= found["order_agreement"] <= 1
    assert found["simulated_seconds"] < 1.5 * found["real_seconds"]


def test_a_run_is_imitated_in_the_order_of_its_own_plan(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which of several tasks came first follows from what layers were taken to cost before."""
    how = ("--set", "passes=subnets:4", "--steps", "24", "--order", "critical-path")
    train = ("train", *MINE, *how, "--stages", "2", "--run-dir", "real", "--quiet")
    run(capsys, *train)
    file, found = place / "real/costs.json", {}
    planned = json.loads(file.read_text())
    assert planned["columns"].split() == list(COLUMNS)
    rows = [list(map(int, row.split())) for row in planned["rows"]]
    for name, factor in (("own", 1), ("others", 50)):
        for row in rows:
            row[2:4] = [cost * (factor if row[0] % 2 else 1) for cost in row[2:4]]
        changed = planned | {"rows": [" ".join(map(str, row)) for row in rows]}
        file.write_text(json.dumps(changed))
        found[name] = json.loads(run(capsys, "simulate", "--like", "real", "--json"))
    assert found["own"]["order_agreement"] > found["others"]["order_agreement"]
    for broken in ("{", json.dumps(planned | {"rows": ["0 0 1"]}), json.dumps({"rows": 1})):
        file.write_text(broken)
        assert cli.main(["simulate", "--like", "real"]) == 2
        assert "costs.json: expected rows of block, option, forward_ns" in capsys.readouterr().err
    file.write_text(json.dumps(planned | {"rows": planned["rows"][:1]}))
    assert cli.main(["simulate", "--like", "real"]) == 2
    assert "expected costs of every block, found none of block 1" in capsys.readouterr().err
    file.unlink()
    assert json.loads(run(capsys, "simulate", "--like", "real", "--json"))["tasks"]


def test_rows_are_planned_with_what_layers_cost_on_so_many_workers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here each of two workers takes twice as long as one alone."""

    def on_workers(scenario: Scenario, count: int) -> Scenario:
        costs = scenario.costs.costs
        times = {place: LayerCost(*(count * ns for ns in cost)) for place, cost in costs.items()}
        made = replace(scenario, beside=lambda _: {"costs": CostTable(times)})
        return real(made, count)

    real = Scenario.on_workers
    monkeypatch.setattr(Scenario, "on_workers", on_workers)
    words = ("--devices", "2", "--steps", "40", "--no-shared", "--samplers", "uniform", "--json")
    rows = json.loads(run(capsys, "plan", *TABLE5, *words))
    assert [row["stages"] for row in rows] == [1, 2], "two are no faster than one"


def test_a_plan_lists_the_best_first_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", *MINE, "--devices", "2", "--steps", "8")
    more = ("--samplers", "uniform,spaced:1", "--streams", "1,2", "--budget", "none,3x")
    rows = json.loads(run(capsys, *words, *more, "--json"))
    assert len(rows) == 2 * 2 * 2 * 2
    speeds = [row["steps_per_second"] for row in rows]
    assert speeds == sorted(speeds, reverse=True)
    assert {row["stages"] for row in rows} == {1, 2}
    cheap = ("--steps", "30", "--order", "paper", "--no-shared", "--samplers", "uniform")
    assert cli.main(["plan", *TABLE5, "--devices", "4", *cheap]) == 0
    out, found = capsys.readouterr()
    told = [line.split(": ")[0] for line in found.splitlines() if "subnets/s" in line]
    assert told == [f"uniform, stages {stages}" for stages in (1, 2, 4)], "few stages are sooner"
    assert found.splitlines()[-1] == "simulating  4/4"  # and the lag that is enough
    assert "uniform on 4 stages is limited by" in out
    assert "causal order: the longest chain" in out


def test_a_plan_shows_the_bounds_of_whole_and_split_backwards(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two columns; what is above is above the bound of the row's own backwards."""
    words = ("plan", *TABLE5, "--devices", "2", "--steps", "30", "--order", "paper", "--no-shared",
             "--samplers", "uniform")  # fmt: skip
    whole, split = (
        {row["stages"]: row for row in json.loads(run(capsys, *words, *more, "--json"))}[2]
        for more in ((), ("--set", "backward=split"))
    )
    assert whole["bounds"] == split["bounds"]
    assert 0 <= split["bounds"]["split"] < split["bounds"]["whole"]
    assert whole["bound"] == whole["bounds"]["whole"]
    assert split["bound"] == split["bounds"]["split"]
    budget = json.loads(run(capsys, *words, "--budget", "3x", "--json"))
    assert {row["stages"]: row["bounds"] for row in budget}[2] == whole["bounds"]
    row = next(line for line in run(capsys, *words).splitlines() if line.split()[1:2] == ["2"])
    figures = [f"{whole['bounds'][name]:.3f}" for name in ("whole", "split")]
    assert row.split()[5:7] == figures
    monkeypatch.setattr(LayerCost, "split", property(lambda cost: cost))
    out = run(capsys, *words)
    assert "bound" in out and "split" not in out


@pytest.mark.long
def test_a_plan_says_how_late_is_late_enough(capsys: pytest.CaptureFixture[str]) -> None:
    """The least K that is about as fast as a long one: one less is slower."""
    words = ("cv.c1", "--costs", "table5", "--steps", "50")
    out = run(capsys, "plan", *words, "--devices", "4", "--samplers", "spaced:8")
    (line,) = (line for line in out.splitlines() if "on a longer lag does not" in line)
    needed = int(line.split("lag(")[1].split(")")[0])
    assert 4 <= needed <= 6

    def speed(k: int) -> float:
        more = ("--sampler", "spaced:8", "--stages", "4", "--set", f"rule.stem=lag({k})")
        return float(figures(run(capsys, "simulate", *words, *more))["subnets per second"])

    assert speed(needed - 1) < 0.99 * speed(8) <= speed(needed)


@pytest.mark.long
def test_a_plan_over_groups_passes_and_cuts(capsys: pytest.CaptureFixture[str]) -> None:
    """Of four devices: every way to deal them to groups that have a pass each."""
    words = ("plan", *TABLE5, "--devices", "4", "--steps", "24", "--order", "paper", "--no-shared")
    kinds = ("--samplers", "uniform", "--passes", "one,subnets:2,accumulate:4")
    found = json.loads(run(capsys, *words, *kinds, "--partitions", "balanced,static", "--json"))
    shapes = {
        passes: {
            (row["groups"], row["stages_per_group"]) for row in found if row["passes"] == passes
        }
        for passes in ("one", "subnets:2", "accumulate:4")
    }
    assert shapes["one"] == {(1, 1), (1, 2), (1, 4)}
    assert shapes["subnets:2"] == shapes["one"] | {(2, 1), (2, 2)}
    assert shapes["accumulate:4"] == shapes["subnets:2"] | {(4, 1)}
    assert {row["partition"] for row in found if row["stages_per_group"] == 2} == {
        "balanced",
        "static",
    }
    best = max(found, key=lambda row: row["steps_per_second"])
    assert (best["groups"], best["stages_per_group"]) == (4, 1), "uniform subnets conflict"
    out = run(capsys, *words, *kinds)
    assert "uniform subnets:2 on" in out and "2 x 2" in out and "causal order" in out


@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        (("simulate",), ("expected a space, or --like",)),
        (("simulate", "nlp.c3", "--like", "x"), ("expected a space, or --like",)),
        (("simulate", "--like", "nowhere"), ("nowhere is not a run directory",)),
        (("simulate", "nlp.c9", "--costs", "table5"), ("nlp.c9", "nlp.c3")),
        (("simulate", *MINE, "--costs", "table5"), ("expected one of nlp.c0", "profiled")),
        (("simulate", *MINE, "--no-shared"), ("--no-shared", "table5")),
        (("simulate", "nlp.c3", "--costs", "guessed"), ("'guessed'", "profiled or table5")),
        (("simulate", *TABLE5, "--order", "best"), ("'best'", "critical-path")),
        (("simulate", *TABLE5, "--policy", "ssp"), ("ssp", "csp")),
        (("simulate", *TABLE5, "--stages", "0"), ("stages", "1 or more", "0")),
        (("simulate", *TABLE5, "--stages", "99"), ("99 stages", "--stages 52")),
        (("simulate", *TABLE5, "--steps", "0"), ("steps", "found 0")),
        (("simulate", *TABLE5, "--streams", "0"), ("streams", "0")),
        (("simulate", *TABLE5, "--sampler", "spaced"), ("'spaced'",)),
        (("simulate", *TABLE5, "--memory-budget", "1KiB"), ("memory budget", "found 1024")),
        (("simulate", *TABLE5, "--memory-budget", "lots"), ("memory_budget", "lots")),
        (("simulate", *TABLE5, "--run-dir", MODULE + ".py"), ("found a file",)),
        (("plan", *TABLE5, "--devices", "0"), ("--devices 0", "1 to 256")),
        (("plan", *TABLE5, "--passes", "some"), ("passes: expected one", "'some'")),
        (("plan", *TABLE5, "--partitions", "odd"), ("partition", "'odd'", "balanced")),
        (("plan", *TABLE5, "--streams", "1,x"), ("--streams 'x'",)),
        (("plan", *TABLE5, "--samplers", "uniform,,fair"), ("--samplers", "commas")),
        (("plan", *TABLE5, "--budget", "3x,much"), ("memory_budget", "much")),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], pieces: tuple[str, ...]
) -> None:
    assert cli.main(list(words)) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    assert [piece for piece in pieces if piece not in output.err] == [], output.err
    assert not Path("runs").exists()


def test_steps_of_several_passes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*TABLE5, "--stages", "4", "--steps", "6", "--json", "--set", "passes=sandwich:2")
    free = json.loads(run(capsys, "simulate", *words))
    held = json.loads(run(capsys, "simulate", *words, "--set", "clip_global_norm=1"))
    assert held["makespan_seconds"] > free["makespan_seconds"]
    for found in (free, held):
        assert found["bubble_ratio"] >= found["bound"]

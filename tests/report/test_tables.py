"""Time bins, balance, orders, summary and what is read from a directory, against made logs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError
from naspipe.config.ids import Access, AccessKind, LayerId, StreamId
from naspipe.config.steps import Steps
from naspipe.report.needs import Schedule
from naspipe.report.recorded import read_run
from naspipe.report.reductions import Reason
from naspipe.report.run_tables import BUSY, layer_orders, run_tables, stage_balance, time_bins
from naspipe.report.summary import agreement, facts, numbers
from naspipe.report.waits import Wait, explain_waits
from naspipe.store.access_order import access_orders
from naspipe.store.labels import SpaceLabels
from naspipe.store.metrics import summarize
from tests.store.fake_run import CHAINS, SPACE, FakeRun, access, sequential_accesses

F, B, W = AccessKind.FORWARD, AccessKind.BACKWARD, AccessKind.WRITE


def spread(records: list[Access], num_stages: int) -> list[Access]:
    """Each block on its own stage, one record after another: most of the time is idle."""
    return [record._replace(stage=record.layer.block % num_stages) for record in records]


def test_a_bin_is_busy_or_waits() -> None:
    # stage 0  F F . .      four bins of 10 ns
    # stage 1  . . F F
    records = [
        access(0, 0, 0, F, 0, length_ns=20),
        access(1, 0, 0, F, 20, length_ns=20, stage=1, stalled_ns=5),
    ]
    bins = time_bins(records, explain_waits(records, 2, Schedule(16)), 2, 4)
    assert bins.edges_ns == [0, 10, 20, 30, 40]
    assert [stage[BUSY] for stage in bins.shares] == [[1, 1, 0, 0], [0, 0, 1, 1]]
    assert bins.shares[0]["drain"] == [0, 0, 1, 1]
    assert bins.shares[1]["fill"] == [1, 1, 0, 0]
    assert (bins.reads, bins.hits) == ([1, 0, 1, 0], [1, 0, 0, 0])


def test_a_wait_over_several_bins_is_cut_at_their_edges() -> None:
    records = [access(0, 0, 0, F, 0), access(0, 0, 0, B, 35, length_ns=5)]
    bins = time_bins(records, [Wait(records[0].stage, 10, 35, Reason.INPUT)], 1, 4)
    assert bins.shares[0]["input"] == [0, 1, 1, 0.5]
    assert bins.shares[0][BUSY] == [1, 0, 0, 0.5]


@given(
    chains=st.lists(st.sampled_from(CHAINS), min_size=1, max_size=9),
    num_stages=st.integers(1, 4),
    num_bins=st.integers(1, 50),
)
def test_bins_add_up_to_the_bubble(
    chains: list[tuple[int, ...]], num_stages: int, num_bins: int
) -> None:
    """Fewer than ten subnets have no warm-up, so the whole run's bubble is the metric's."""
    records = spread(sequential_accesses(chains), num_stages)
    bins = time_bins(
        records, explain_waits(records, num_stages, Schedule(16)), num_stages, num_bins
    )
    widths = [high - low for low, high in pairwise(bins.edges_ns)]
    length = bins.edges_ns[-1] - bins.edges_ns[0]
    busy = sum(
        share * width
        for stage in bins.shares
        for share, width in zip(stage[BUSY], widths, strict=True)
    )
    bubble = summarize(records, num_stages).bubble_ratio
    assert 1 - busy / (num_stages * length) == pytest.approx(bubble, abs=1e-9)
    assert sum(bins.reads) == sum(record.kind is not W for record in records)


def test_the_balance_of_stages() -> None:
    records = [
        access(0, 0, 0, F, 0, length_ns=30),
        access(1, 0, 0, F, 30, stage=1),
        access(1, 0, 0, B, 40, length_ns=20, stage=1),
        access(0, 0, 1, F, 30),
        access(1, 0, 1, W, 60, version=1),
    ]
    balance = stage_balance(records, 2)
    assert balance.busy_ns == {"F": [40, 10], "B": [0, 20], "W": [10, 0]}
    assert balance.peak_to_mean == [1.0, 2.0]
    assert balance.first_blocks == [[0, 0], [1, -1]]


def test_a_pass_is_balanced_within_its_group() -> None:
    """Two groups of two stages; each pass leaves the stages of the other one alone."""
    records = [
        access(0, 0, 0, F, 0, length_ns=30),
        access(1, 0, 0, F, 30, stage=1),
        access(0, 0, 1, F, 0, stage=2),
        access(1, 0, 1, F, 10, stage=3),
    ]
    assert stage_balance(records, 4, 2).peak_to_mean == [1.5, 1.0]


def test_orders_are_those_of_the_log_and_count_their_waits() -> None:
    records = sequential_accesses(CHAINS)
    write = next(record for record in records if record.kind is W)
    waits = [
        Wait(write.stage, 0, 7, Reason.CAUSAL, None, write),
        Wait(write.stage, 9, 11, Reason.CAUSAL, None, write),
        Wait(write.stage, 20, 90, Reason.INPUT, None, write),
    ]
    labels = SpaceLabels(SPACE)
    rows = layer_orders(records, waits, labels)
    assert {row.layer: row.order for row in rows} == access_orders(records)
    assert [row.label for row in rows] == ["stem", "0.0", "0.1", "1.0", "1.1", "head"]
    assert [row.rule for row in rows][:2] == ["frozen", "exact"]
    blamed = {row.label: (row.causal_ns, row.causal_waits) for row in rows if row.causal_waits}
    assert blamed == {labels.label(write.layer): (9, 2)}


def test_numbers_are_the_metrics(tmp_path: Path) -> None:
    run = read_run(FakeRun().write(tmp_path / "run"))
    found = numbers(run)
    summary = summarize(run.accesses, 1)
    assert {name: found[name] for name in summary._fields} == summary._asdict()
    assert found["final_loss"] == 1.0
    assert facts(run)["data name"] == "x" and facts(run)["torch"] == "2.11.0"


def test_equal_runs_agree_and_others_say_where(tmp_path: Path) -> None:
    one = read_run(FakeRun().write(tmp_path / "one"))
    same = read_run(FakeRun().write(tmp_path / "same"))
    assert agreement(one, same) == "same losses, same access order"
    losses = [(2.0, "40000000"), (1.5, "3fc00001"), (1.25, "3fa00000"), (1.0, "3f800000")]
    other = read_run(FakeRun(losses=losses).write(tmp_path / "other"))
    assert agreement(one, other).startswith("differs: step 1: loss")
    late = FakeRun(accesses=sequential_accesses([CHAINS[1], *CHAINS[1:]]))
    assert agreement(one, read_run(late.write(tmp_path / "late"))).startswith("differs: step 0")
    seed = FakeRun(definition={"seed": 2, "data": {"name": "x"}}).write(tmp_path / "seed")
    assert agreement(one, read_run(seed)) == "not the same definition: seed"


def test_tables_are_json_and_begin_at_zero(tmp_path: Path) -> None:
    shifted = [
        record._replace(start_ns=record.start_ns + 5000, end_ns=record.end_ns + 5000)
        for record in spread(sequential_accesses(CHAINS), 2)
    ]
    losses = [(2.0, "40000000"), (float("nan"), "7fc00000")]
    path = FakeRun(accesses=shifted, stages=2, losses=losses).write(tmp_path / "run")
    tables = run_tables(read_run(path), "run")
    json.dumps(tables, allow_nan=False)
    assert tables["losses"]["value"] == [2.0, "nan"]
    spans = tables["spans"]
    assert spans["start"][0] == 0 and tables["end_ns"] == 10 * len(shifted)
    lengths = {len(column) for column in spans.values()}
    assert lengths == {len(shifted)}
    idle = sum(map(sum, tables["wait_totals_ns"].values()))
    assert idle == 2 * tables["end_ns"] - sum(spans["length"])


def test_a_run_that_failed_is_reported_as_far_as_it_came(tmp_path: Path) -> None:
    path = FakeRun(status="failed", stages=3).write(tmp_path / "run")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["failure"] = "stage 1 failed in 0.3F@1\nTraceback"
    (path / "manifest.json").write_text(json.dumps(manifest))
    (path / "losses.jsonl").unlink()
    run = read_run(path)
    assert run.remarks == [
        "This run is not complete: its manifest says 'failed'. First cause: stage 1 failed in "
        "0.3F@1",
        "Nothing was recorded by stage 1, 2.",
        "No loss was recorded.",
    ]
    assert run_tables(run, "run")["numbers"]["num_passes"] == len(CHAINS)


def test_a_run_without_any_record_has_tables(tmp_path: Path) -> None:
    path = FakeRun(status="running", accesses=[], losses=[]).write(tmp_path / "run")
    run = read_run(path)
    assert len(run.remarks) == 3
    tables = run_tables(run, "run")
    assert tables["end_ns"] == 0 and tables["layers"] == [] and tables["numbers"] == {}


@pytest.mark.parametrize("name", ["stages", "groups", "window"])
def test_a_manifest_with_an_impossible_execution_is_refused(tmp_path: Path, name: str) -> None:
    path = FakeRun().write(tmp_path / "run")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["execution"][name] = "many"
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=rf"execution.{name} .* found 'many'"):
        run_tables(read_run(path), "run")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("csp", Schedule(16)),
        ("bsp", Schedule(16, bulk=2)),
        ("asp", Schedule(2, waits_for_versions=False)),
        ("sequential", Schedule(1)),
    ],
)
def test_the_policy_decides_what_records_wait_for(
    tmp_path: Path, policy: str, expected: Schedule
) -> None:
    path = FakeRun(definition={"policy": policy}, stages=2).write(tmp_path / "run")
    assert read_run(path).schedule == expected


def test_passes_and_clipping_decide_what_writes_wait_for(tmp_path: Path) -> None:
    """And layers with buffers are those of the checkpoint, unless their statistics are deferred."""
    recipe = {"passes": "accumulate:4", "clip_global_norm": 1.0}
    path = FakeRun(definition={"recipe": recipe}).write(tmp_path / "run")
    steps, ordered = Steps(4, is_gated=True), frozenset({LayerId(StreamId(0), 2, 1)})
    assert read_run(path).schedule == Schedule(16, steps=steps, ordered=ordered)
    deferred = FakeRun(definition={"recipe": {**recipe, "norms": "deferred"}})
    assert read_run(deferred.write(tmp_path / "two")).schedule == Schedule(16, steps=steps)
    (path / "checkpoints" / "final" / "stage-0.safetensors").unlink()
    assert read_run(path).schedule == Schedule(16, steps=steps)


def test_stages_of_all_groups_are_counted(tmp_path: Path) -> None:
    path = FakeRun(stages=2).write(tmp_path / "run")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["execution"]["groups"] = 3
    (path / "manifest.json").write_text(json.dumps(manifest))
    run = read_run(path)
    assert run.num_stages == 6 and "Nothing was recorded by stage 1, 2, 3, 4, 5." in run.remarks


def test_streams_that_share_a_pipeline_are_remarked(tmp_path: Path) -> None:
    path = FakeRun().write(tmp_path / "run")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["execution"]["streams"] = 2
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert read_run(path).remarks[0].startswith("2 streams shared this pipeline")


def test_the_log_of_another_space_is_refused(tmp_path: Path) -> None:
    path = FakeRun(accesses=[access(9, 0, 0, F, 0)]).write(tmp_path / "run")
    with pytest.raises(ConfigError, match="the log is of another run"):
        read_run(path)

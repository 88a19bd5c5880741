"""Which of the time that W took would have been idle, in logs made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from naspipe.config.ids import Access, AccessKind
from naspipe.report.needs import Schedule
from naspipe.report.recorded import read_run
from naspipe.report.run_tables import run_tables
from naspipe.report.summary import filled_time
from tests.store.fake_run import FakeRun, access, sequential_accesses

F, B, W = AccessKind.FORWARD, AccessKind.BACKWARD, AccessKind.WRITE


def pipelined(second: tuple[int, int], version: int = -1) -> list[Access]:
    """Stage 0 runs a WRITE from 40 to 60, the first 15 of it for its gradients.

    Then it runs a backward whose gradients stage 1 sends in the given time.
    """
    start, end = second
    return [
        access(1, 0, 0, F, 0), access(1, 0, 1, F, 10), access(2, 0, 0, F, 10, stage=1),
        access(2, 0, 0, B, 20, stage=1), access(1, 0, 0, B, 30),
        access(2, 0, 1, F, 20, stage=1, length_ns=0),
        access(2, 0, 1, B, start, stage=1, length_ns=end - start),
        access(1, 0, 0, W, 40, version=0, length_ns=20, owed_ns=15),
        access(1, 0, 1, B, max(60, end), version=version),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("second", "filled_ns"),
    [((30, 35), 0), ((30, 40), 0), ((30, 50), 10), ((30, 55), 15), ((30, 90), 15)],
    ids=["ready before", "ready as it began", "ready meanwhile", "ready after it", "much later"],
)
def test_time_in_which_nothing_else_was_ready_is_filled(
    second: tuple[int, int], filled_ns: int
) -> None:
    assert filled_time(pipelined(second), Schedule(16)) == (15, filled_ns)


def test_a_forward_that_waits_for_the_write_is_work_that_is_ready() -> None:
    records = [
        *pipelined((30, 90)),
        access(0, 0, 2, F, 30, stage=1, length_ns=5),
        access(1, 0, 2, F, 60, version=0),
    ]
    assert filled_time(records, Schedule(16)) == (15, 0)


def test_a_stage_that_is_done_fills_until_the_last_block_of_all() -> None:
    late = access(2, 0, 1, W, 80, version=1, stage=1, length_ns=30, owed_ns=25)
    assert filled_time([*pipelined((30, 90)), late], Schedule(16)) == (40, 15 + 20)


def test_one_stage_alone_has_no_idle_time_to_fill(tmp_path: Path) -> None:
    """Its next block is always ready, and behind the last one nothing counts.

    A run without W has no such figure.
    """
    plain = sequential_accesses([(0, 0, 1, 0), (0, 1, 0, 0)], frozen=-1)
    records = [each._replace(owed_ns=6 if each.kind is W else 0) for each in plain]
    owing = sum(each.owed_ns for each in records)
    assert records[-1].owed_ns and filled_time(records, Schedule(16)) == (owing, 0)
    assert filled_time(plain, Schedule(16)) == (0, 0)
    tables = run_tables(read_run(FakeRun(accesses=records).write(tmp_path / "w")), "w")
    assert tables["spans"]["owed"] == [each.owed_ns for each in records]
    assert tables["numbers"]["owed_ratio"] == owing / (10 * len(records))
    assert tables["numbers"]["filled_ratio"] == 0
    tables = run_tables(read_run(FakeRun(accesses=plain).write(tmp_path / "plain")), "plain")
    assert "owed_ratio" not in tables["numbers"]

"""Gaps made by hand, and why each was there."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.ids import Access, AccessKind
from naspipe.report.needs import Schedule
from naspipe.report.reductions import Reason
from naspipe.report.waits import Wait, explain_waits
from tests.store.fake_run import CHAINS, access, sequential_accesses

F, B, W = AccessKind.FORWARD, AccessKind.BACKWARD, AccessKind.WRITE


def explained(records: list[Access], stages: int = 2, **more: Any) -> list[tuple]:
    """Stage, reason, start and end of each wait."""
    waits = explain_waits(records, stages, Schedule(**{"window": 16, **more}))
    return [(w.stage, w.reason, w.start_ns, w.end_ns) for w in waits]


def test_the_pipeline_fills_waits_for_gradients_and_drains() -> None:
    # stage 0  F F . . B B
    # stage 1  . . F B . .
    records = [
        access(0, 0, 0, F, 0, length_ns=20),
        access(1, 0, 0, F, 20, stage=1),
        access(1, 0, 0, B, 30, stage=1),
        access(0, 0, 0, B, 40, length_ns=20),
    ]
    assert explained(records) == [
        (0, Reason.INPUT, 20, 40),
        (1, Reason.FILL, 0, 20),
        (1, Reason.DRAIN, 40, 60),
    ]
    assert explain_waits(records, 2, Schedule(16))[0].cause == records[2]


def test_a_message_on_its_way_is_no_input() -> None:
    """Stage 0 sent at 10; the forward on stage 1 began at 25 only."""
    records = [
        access(0, 0, 0, F, 0),
        access(1, 0, 7, F, 0, stage=1, length_ns=5),
        access(1, 0, 0, F, 25, stage=1),
    ]
    assert explained(records)[1:] == [(1, Reason.INPUT, 5, 25)]


def test_a_causal_wait_names_the_layer_its_writer_and_who_was_blocked() -> None:
    # stage 0  0F 1F .......... 0B 0W 1F     block 1: version 0 is written at 70
    # stage 1  ..... 0F 0B (blocks 2)
    blocked = access(1, 0, 1, F, 70, version=0)
    write = access(1, 0, 0, W, 60, version=0)
    records = [
        access(0, 0, 0, F, 0, length_ns=5),
        access(1, 0, 0, F, 5, length_ns=5),
        access(0, 1, 1, F, 10),
        access(2, 0, 0, F, 20, stage=1),
        access(2, 0, 0, B, 30, length_ns=15, stage=1),
        access(1, 0, 0, B, 50),
        write,
        blocked,
    ]
    waits = [wait for wait in explain_waits(records, 2, Schedule(16)) if wait.stage == 0]
    assert waits == [Wait(0, 20, 50, Reason.CAUSAL, records[5], write, blocked)]


def test_without_a_blocked_forward_the_same_gap_is_no_input() -> None:
    gradient = access(2, 0, 0, B, 30, length_ns=15, stage=1)
    records = [
        access(1, 0, 0, F, 0),
        access(2, 0, 0, F, 20, stage=1),
        gradient,
        access(1, 0, 0, B, 50),
        access(1, 0, 0, W, 60, version=0),
    ]
    waits = [wait for wait in explain_waits(records, 2, Schedule(16)) if wait.stage == 0]
    assert waits == [Wait(0, 10, 50, Reason.INPUT, records[3], gradient)]


def test_a_forward_blocks_from_the_moment_its_input_is_there() -> None:
    """Input at 30: before it nothing was there; after it the version was missing, until 60."""
    records = [
        access(1, 0, 0, F, 0, stage=1),
        access(0, 0, 1, F, 20),
        access(2, 0, 0, B, 40, stage=2),
        access(1, 0, 0, B, 50, stage=1),
        access(1, 0, 0, W, 60, version=0, stage=1),
        access(1, 0, 1, F, 70, version=0, stage=1),
    ]
    gaps = [gap for gap in explained(records, 3) if gap[0] == 1]
    assert gaps == [(1, Reason.INPUT, 10, 30), (1, Reason.CAUSAL, 30, 50)]


def test_a_version_of_another_stage_is_a_causal_wait_until_it_has_come() -> None:
    write = access(3, 1, 0, W, 50, version=0, stage=1)
    reader = access(3, 1, 1, F, 64, version=0)
    records = [access(2, 0, 1, F, 0), write, reader]
    waits = [wait for wait in explain_waits(records, 2, Schedule(16)) if wait.stage == 0]
    assert waits == [Wait(0, 10, 64, Reason.CAUSAL, reader, write, reader)]


def test_a_version_that_was_there_before_the_input_blocks_nothing() -> None:
    """Written at 30 on another stage, input at 50: nothing was here to be blocked."""
    sent = access(1, 0, 1, F, 40, stage=2)
    reader = access(2, 0, 1, F, 60, version=0)
    records = [access(3, 0, 9, F, 0), access(2, 0, 0, W, 20, version=0, stage=1), sent, reader]
    waits = [wait for wait in explain_waits(records, 3, Schedule(16)) if wait.stage == 0]
    assert waits == [Wait(0, 10, 60, Reason.INPUT, reader, sent)]


def test_the_oldest_blocked_subnet_names_the_wait() -> None:
    """Subnets 1 and 2 are both blocked; when 1 is clear, 2 still waits for another layer."""
    ends = {1: 40, 2: 80}
    records = [access(0, 0, subnet, F, 0, length_ns=10) for subnet in ends]
    for subnet, end in ends.items():
        records.append(access(1, subnet, 0, W, end - 10, version=0, stage=1))
        records.append(access(1, subnet, subnet, F, end, version=0))
    causal = [w for w in explain_waits(records, 2, Schedule(16)) if w.reason is Reason.CAUSAL]
    assert [(w.blocked.sequence_id, w.start_ns, w.end_ns) for w in causal if w.blocked] == [
        (1, 10, 40),
        (2, 50, 80),
    ]


def test_nothing_missing_is_other() -> None:
    records = [access(0, 0, 0, F, 0), access(1, 0, 0, F, 15)]
    assert explained(records, 1) == [(0, Reason.OTHER, 10, 15)]


def test_a_load_is_cut_from_the_end_of_the_gap() -> None:
    records = [
        access(0, 0, 0, F, 0),
        access(1, 0, 9, F, 0, stage=1, length_ns=2),
        access(1, 0, 0, F, 40, stage=1, stalled_ns=12),
    ]
    gaps = [gap for gap in explained(records) if gap[0] == 1]
    assert gaps == [(1, Reason.INPUT, 2, 28), (1, Reason.LOAD, 28, 40)]


def test_a_stall_longer_than_its_gap_is_clipped() -> None:
    records = [access(0, 0, 0, F, 0), access(1, 0, 0, F, 15, stalled_ns=400)]
    assert explained(records, 1) == [(0, Reason.LOAD, 10, 15)]


def window_run() -> list[Access]:
    """Stage 0 runs 0F and 1F, waits for 0's gradients until 50, then runs 0B and 2F."""
    return [
        access(0, 0, 0, F, 0),
        access(0, 1, 1, F, 10),
        access(1, 0, 0, B, 30, stage=1),
        access(0, 0, 0, B, 50),
        access(0, 2, 2, F, 60),
    ]


def test_a_full_window_is_named_while_subnets_are_left() -> None:
    """With a window of 2, subnet 2 could not be let in before 0 was done here, at 60."""
    gaps = [gap for gap in explained(window_run(), window=2) if gap[0] == 0]
    assert gaps == [(0, Reason.WINDOW, 20, 50)]


def test_a_window_with_room_is_not_to_blame() -> None:
    """Subnet 1 could be let in when 0 was done, at 10."""
    records = [
        access(0, 0, 0, F, 0),
        access(1, 0, 7, B, 30, stage=1),
        access(0, 0, 7, B, 50),
        access(0, 1, 1, F, 60),
    ]
    gaps = [gap for gap in explained(records, window=1) if gap[0] == 0]
    assert gaps == [(0, Reason.INPUT, 10, 50)]


def test_a_bulk_is_let_in_when_the_one_before_is_done() -> None:
    """In bulks of 2, subnet 2 waits for 0 and 1: the gap before 0's gradients is the window's."""
    gaps = [gap for gap in explained(window_run(), bulk=2) if gap[0] == 0]
    assert gaps == [(0, Reason.WINDOW, 20, 50)]
    gaps = [gap for gap in explained(window_run(), bulk=3) if gap[0] == 0]
    assert gaps == [(0, Reason.INPUT, 20, 50)]


def test_without_causal_order_no_forward_is_blocked() -> None:
    """Asynchronous parallelism reads what is there: the version it got is no reason."""
    sent = access(0, 0, 1, F, 5, stage=1)
    write = access(1, 1, 0, W, 50, version=0, stage=1)
    records = [access(2, 0, 1, F, 0), sent, write, access(1, 1, 1, F, 64, version=0)]
    assert [g[1] for g in explained(records) if g[0] == 0] == [Reason.INPUT, Reason.CAUSAL]
    asp = explained(records, waits_for_versions=False)
    assert [g[1] for g in asp if g[0] == 0] == [Reason.INPUT]


def test_at_the_streams_end_no_window_is_to_blame() -> None:
    gaps = [gap for gap in explained(window_run()[:-1], window=2) if gap[0] == 0]
    assert gaps == [(0, Reason.INPUT, 20, 50)]


def test_a_write_waits_for_the_layers_write_on_another_stage() -> None:
    """Updates of a lagging layer follow one another in sequence order."""
    before = access(0, 0, 3, W, 50, version=3, stage=1)
    after = access(0, 0, 4, W, 70, version=4)
    waits = explain_waits([access(0, 0, 4, B, 0), before, after], 2, Schedule(16))
    assert waits[0] == Wait(0, 10, 70, Reason.INPUT, after, before)


def test_a_task_that_needs_all_of_its_blocks_waits_for_the_last_of_them() -> None:
    write = access(2, 1, 0, W, 40, version=0, stage=1)
    records = [
        access(3, 0, 9, F, 0),
        access(0, 0, 1, F, 0, stage=1),
        write,
        access(1, 0, 1, F, 60),
        access(2, 1, 1, F, 70, version=0),
    ]
    assert explained(records)[0] == (0, Reason.OTHER, 10, 60)
    assert explained(records, is_partly_clear=False)[0] == (0, Reason.CAUSAL, 10, 60)


def test_nothing_is_explained_of_nothing() -> None:
    assert explain_waits([], 2, Schedule(16)) == []


def test_a_stage_without_records_drains() -> None:
    assert explained([access(0, 0, 0, F, 0)], 2) == [(1, Reason.DRAIN, 0, 10)]


@given(
    chains=st.lists(st.sampled_from(CHAINS), min_size=1, max_size=6),
    num_stages=st.integers(1, 4),
    stretched=st.lists(st.integers(0, 30), min_size=60, max_size=60),
)
def test_waits_and_records_fill_the_makespan(
    chains: list[tuple[int, ...]], num_stages: int, stretched: list[int]
) -> None:
    """On each stage every nanosecond is in one record or one wait."""
    records, clock = [], 0
    for place, record in enumerate(sequential_accesses(chains)):
        clock += stretched[place % 60]
        stage = record.layer.block % num_stages
        records.append(record._replace(stage=stage, start_ns=clock, end_ns=clock + 10,
                                       stalled_ns=stretched[place % 7]))  # fmt: skip
        clock += 10
    waits = explain_waits(records, num_stages, Schedule(2))
    begin, end = records[0].start_ns, records[-1].end_ns
    for stage in range(num_stages):
        pieces = [(w.start_ns, w.end_ns) for w in waits if w.stage == stage]
        pieces += [(r.start_ns, r.end_ns) for r in records if r.stage == stage]
        reached = begin
        for start_ns, end_ns in sorted(pieces):
            assert start_ns == reached and end_ns > start_ns
            reached = end_ns
        assert reached == end

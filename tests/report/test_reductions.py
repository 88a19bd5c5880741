"""Sums between groups in logs made by hand: when they left and were joined, and who waited."""

from __future__ import annotations

from typing import Any

from naspipe.config.ids import Access, AccessKind
from naspipe.config.steps import Steps
from naspipe.report.needs import Needs, Schedule
from naspipe.report.reductions import Held, Reason, Reductions
from naspipe.report.run_tables import reduction_columns
from naspipe.report.waits import Wait, explain_waits
from tests.store.fake_run import access

F, B, W = AccessKind.FORWARD, AccessKind.BACKWARD, AccessKind.WRITE
FOUR = Schedule(16, steps=Steps(4))


def step(second_ends: int = 30) -> list[Access]:
    """Four passes through one layer: 0 and 1 on stage 0, 2 and 3 on stage 1."""
    # stage 0  0F 1F 0B 1B 0W 1W            the sum leaves at 50
    # stage 1  2F 3F 2B 3B .......... 2W 3W
    return [
        access(0, 0, 0, F, 0),
        access(0, 0, 1, F, 10),
        access(0, 0, 0, B, 20),
        access(0, 0, 1, B, 30),
        access(0, 0, 0, W, 40, version=0, length_ns=5),
        access(0, 0, 1, W, 45, version=1, length_ns=5),
        access(0, 0, 2, F, 0, stage=1),
        access(0, 0, 3, F, 10, stage=1),
        access(0, 0, 2, B, 20, stage=1, length_ns=5),
        access(0, 0, 3, B, 25, stage=1, length_ns=second_ends - 25),
        access(0, 0, 2, W, 60, version=2, stage=1, length_ns=5),
        access(0, 0, 3, W, 65, version=3, stage=1, length_ns=5),
    ]


def next_step() -> list[Access]:
    """Pass 4 reads on stage 0, pass 6 on stage 1, what pass 3 wrote there."""
    return [
        access(0, 0, 4, F, 85, version=3),
        access(0, 0, 6, F, 70, version=3, stage=1),
        access(0, 0, 4, B, 95, version=3, length_ns=5),
        access(0, 0, 6, B, 80, version=3, stage=1),
        access(0, 0, 4, W, 100, version=4),
        access(0, 0, 6, W, 120, version=6, stage=1),
    ]


def explained(records: list[Access], schedule: Schedule = FOUR) -> list[tuple[Any, ...]]:
    waits = explain_waits(records, 2, schedule)
    return [(each.stage, each.reason, each.start_ns, each.end_ns) for each in waits]


def test_a_write_that_waits_for_a_sum() -> None:
    records = step()
    waits = explain_waits(records, 2, FOUR)
    given, joined = records[5], records[10]
    assert Wait(1, 30, 60, Reason.REDUCTION, joined, given) in waits
    assert [each.stage for each in waits if each.reason is Reason.REDUCTION] == [1]


def test_where_each_subnet_is_a_step_the_same_gap_is_a_layer_on_its_way() -> None:
    assert (1, Reason.INPUT, 30, 60) in explained(step(), Schedule(16))


def test_a_reader_tells_order_sum_and_copy_apart() -> None:
    found = explained([*step(), *next_step()])
    assert [each for each in found if each[0] == 0] == [
        (0, Reason.REDUCTION, 50, 60),
        (0, Reason.CAUSAL, 60, 70),
        (0, Reason.COPY, 70, 85),
        (0, Reason.DRAIN, 110, 130),
    ]
    assert [each for each in found if each[0] == 1] == [
        (1, Reason.REDUCTION, 30, 60),
        (1, Reason.REDUCTION, 90, 120),
    ]


def test_a_copy_names_its_write_and_who_waited() -> None:
    records = [*step(), *next_step()]
    (wait,) = (w for w in explain_waits(records, 2, FOUR) if w.reason is Reason.COPY)
    assert (wait.cause, wait.blocked) == (records[11], records[12])


def test_a_layer_that_moves_is_no_copy() -> None:
    """Pass 4 is the only one of its step, so the layer itself comes to stage 0."""
    records = [*step(), access(0, 0, 4, F, 85, version=3), access(0, 0, 4, W, 100, version=4)]
    assert (0, Reason.CAUSAL, 60, 85) in explained(records)
    assert Reason.COPY not in {each[1] for each in explained(records)}


def test_a_sum_that_had_left_before_keeps_nobody_waiting() -> None:
    """The second group's own gradients are there at 52 only; the sum left at 50."""
    records = step(second_ends=52)
    (handover,) = Reductions(records, Steps(4)).handovers
    assert (handover.given, handover.joined) == (records[5], records[10])
    assert (handover.own_ns, handover.waited_ns) == (52, 0)
    assert (1, Reason.OTHER, 52, 60) in explained(records)


def test_behind_the_norm_a_sum_is_known_to_have_left_only() -> None:
    """One pass in each group: the WRITE that joins the sum ends the step, and waits for both."""
    records = [
        access(0, 0, 0, B, 0, length_ns=20),
        access(0, 0, 0, W, 20, version=0),
        access(0, 0, 1, B, 0, stage=1),
        access(1, 0, 0, B, 30, length_ns=15),
        access(0, 0, 1, W, 60, version=1, stage=1),
        access(0, 0, 3, F, 70, version=1, stage=1),
    ]
    schedule = Schedule(16, steps=Steps(2, is_gated=True))
    (handover,) = Reductions(records, schedule.steps).handovers
    assert (handover.own_ns, handover.came_ns) == (10, 30)
    assert [each for each in explained(records, schedule) if each[0] == 1] == [
        (1, Reason.REDUCTION, 10, 30),
        (1, Reason.NORM, 30, 45),
        (1, Reason.CAUSAL, 45, 60),
    ]
    assert (1, Reason.NORM, 10, 60) in explained(records[:-1], schedule)


def test_the_norm_waits_for_sums_of_other_layers() -> None:
    """The WRITE of pass 2 is not gated, so it tells when its sum came; that of pass 3 waits on."""
    *records, last = step()
    last = last._replace(start_ns=100, end_ns=105)
    given = access(1, 0, 1, W, 80, version=1)
    records += [last, given, access(1, 0, 2, W, 92, version=2, stage=1)]
    reductions = Reductions(records, Steps(4, is_gated=True))
    assert reductions.holds(last) == [
        Held(30, 60, Reason.REDUCTION, records[5]),
        Held(60, 90, Reason.NORM, given),
    ]


def test_three_groups_hand_on_twice() -> None:
    records = [access(0, 0, y, W, 10 * y, version=y, stage=y // 2) for y in range(6)]
    handovers = Reductions(records[::-1], Steps(6)).handovers
    assert [(each.given.stage, each.joined.stage) for each in handovers] == [(0, 1), (1, 2)]


def test_in_a_tree_stages_add_up_their_own_and_the_last_one_waits() -> None:
    """A pass in each of four groups: 0 to 1, 1 and 2 to 3, which ends the step at 60."""
    ends = (30, 12, 50, 14)
    records = [access(0, 0, y, B, 0, length_ns=end - 2, stage=y) for y, end in enumerate(ends)]
    records += [
        access(0, 0, y, W, end - 2, version=y, stage=y, length_ns=2)
        for y, end in enumerate(ends[:3])
    ]
    records.append(access(0, 0, 3, W, 60, version=3, stage=3))
    tree = Steps(4, reduction="tree")
    reductions = Reductions(records, tree)
    found = [
        (each.given.stage, each.joined.stage, each.left_ns, each.joined_ns, each.waited_ns)
        for each in reductions.handovers
    ]
    assert found == [(0, 1, 30, 60, 20), (1, 3, 30, 60, 48), (2, 3, 50, 60, 48)]
    assert reductions.holds(records[-1]) == [Held(12, 60, Reason.REDUCTION, records[6])]
    assert reductions.holds(records[5]) == [], "it adds up its own, whatever comes"
    assert Needs(records, Schedule(16, steps=tree)).version(records[5]) is None
    columns = reduction_columns(reductions.handovers, {}, 0)
    assert (columns["start"], columns["length"]) == ([30, 30, 50], [30, 30, 10])


def test_a_forward_that_waits_for_another_groups_buffers() -> None:
    """Pass 1 has its input at 10 on stage 1; pass 0 is through the layer on stage 0 at 40."""
    records = [
        access(0, 0, 1, F, 0, stage=1),
        access(1, 0, 0, F, 30),
        access(1, 0, 1, F, 45, stage=1),
    ]
    ordered = Schedule(16, steps=Steps(2), ordered=frozenset({records[1].layer}))
    waits = explain_waits(records, 2, ordered)
    assert Wait(1, 10, 45, Reason.BUFFERS, records[2], records[1], records[2]) in waits
    assert (1, Reason.OTHER, 10, 45) in explained(records, Schedule(16, steps=Steps(2)))
    of_two_steps = Schedule(16, ordered=frozenset({records[1].layer}))
    assert (1, Reason.OTHER, 10, 45) in explained(records, of_two_steps)


def test_a_forward_that_waits_for_what_another_group_teaches() -> None:
    """Pass 1 is at its chain's end at 10 on stage 1; pass 0 has its output on stage 0 at 40."""
    records = [
        access(0, 0, 1, F, 0, stage=1),
        access(0, 0, 0, F, 20),
        access(1, 0, 0, F, 30),
        access(1, 0, 1, F, 45, stage=1),
    ]
    learning = Schedule(16, steps=Steps(2, distills=True))
    waits = explain_waits(records, 2, learning)
    assert Wait(1, 10, 45, Reason.INPUT, records[3], records[2]) in waits
    assert (1, Reason.OTHER, 10, 45) in explained(records, Schedule(16, steps=Steps(2)))

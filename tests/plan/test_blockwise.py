"""Blockwise distillation in the simulator: how full it is, and how many outputs are alive."""

from __future__ import annotations

from dataclasses import replace

import pytest

from naspipe.config.execution import Execution
from naspipe.config.wiring import TapRole
from naspipe.plan.joint_placements import on_one_stage, register_joint_placement
from naspipe.plan.pipeline import plan_pipeline
from naspipe.plan.simulation import simulate_run
from naspipe.plan.virtual_costs import StreamCosts, TableCosts
from scripts.blockwise_costs import COSTS, BlockCost, equal
from scripts.blockwise_simulated import (
    Way,
    grouped,
    in_turn,
    pipeline_of,
    step_of,
    with_barrier,
)
from scripts.paper.costs import RandomCosts
from tests.thinned import long

WINDOW = 3


@pytest.mark.parametrize(("stages", "bubble"), [(2, 0.20), (4, 3 / 7)])
def test_equal_blocks(stages, bubble):
    """The worked example: a barrier costs what the relay takes; without, nothing waits."""
    way = Way(stages=stages, placement="pairs")
    assert with_barrier(equal(4), way).bubble == pytest.approx(bubble, abs=0.002)
    assert step_of(equal(4), way).bubble < 0.01


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("NAS CIFAR-10", (0.79, 0.92, 1.25, 1.60, 1.60)),
        long("NAS ImageNet", (0.78, 0.99, 1.44, 1.67, 1.67)),
    ],
)
def test_speed_over_block_after_block(name, published):
    costs, way = COSTS[name], Way(stages=4)
    split = replace(way, placement="shared", passes=4)
    first = in_turn(costs, split).step
    found = [
        first / each.step
        for each in (
            step_of(costs, replace(way, placement="packed", is_relayed=False)),
            with_barrier(costs, way),
            step_of(costs, replace(way, placement="pairs")),
            grouped(costs, way),
            step_of(costs, split),
        )
    ]
    assert found == pytest.approx(published, abs=0.03)


@pytest.mark.parametrize("name", ["NAS CIFAR-10", "NAS ImageNet", long("VGG-16 CIFAR-10")])
def test_blocks_anywhere_fill_four_stages(name):
    assert step_of(COSTS[name], Way(stages=4)).bubble <= 0.03


def simulated(costs, way, timing=None, steps=30):
    pipeline = pipeline_of(costs, way, [way.pass_cost] * len(costs), 1000.0, steps)
    execution = Execution().changed(stages=way.stages, partition=way.placement, order="paper")
    plan = plan_pipeline(pipeline, execution)
    tables = (stream.costs for stream in pipeline.streams)
    timing = timing or StreamCosts([TableCosts(table=each, link_ns=0) for each in tables])
    return pipeline, simulate_run(pipeline, plan, execution, timing)


@pytest.mark.parametrize("placement", ["pairs", "packed", "layers", "free", "hybrid"])
@pytest.mark.parametrize("seed", range(6))
def test_outputs_alive_are_bounded_by_windows(placement, seed):
    passes = 2 if placement == "hybrid" else 1
    way = Way(stages=3, placement=placement, window=WINDOW, passes=passes)
    costs = [BlockCost(1.0, (1.0, 2.0)), BlockCost(3.0, (1.0,)), BlockCost(0.5, (0.5, 0.5, 4.0))]
    pipeline, run = simulated(costs, way, RandomCosts(seed, 1000, 5000))
    forwards = {}
    for access in run.accesses:
        if access.kind.name == "FORWARD":
            who = (access.layer.stream, access.layer.block, access.sequence_id)
            forwards[who] = (access.start_ns, access.end_ns)
    for tap in pipeline.wiring.taps:
        lives = [
            (forwards[*tap.source, y][1], forwards[*tap.sink, y][1]) for y in range(30 * passes)
        ]
        most = max(sum(a <= when < b for a, b in lives) for when, _ in lives)
        # Some wait where they were made, some where they are taken.
        assert most <= 2 * WINDOW * passes, (tap.role is TapRole.LESSON, most)


def test_a_slow_stage_does_not_slow_those_before_it():
    """The first student is through as early as if the last one were as fast as the others."""
    way = Way(stages=3, placement="pairs", window=40)
    ends = []
    for last in (1.0, 6.0):
        costs = [*equal(2), BlockCost(1.0, (last,))]
        _, run = simulated(costs, way)
        ends.append([max(a.end_ns for a in run.accesses if a.layer.stream == s) for s in range(3)])
    assert ends[0][:2] == ends[1][:2] and ends[1][2] > 2 * ends[0][2]


def teachers_first(pieces, num_stages):
    """The teacher's blocks on stage 0, each student on a stage of its own."""
    count = len(pieces.pairs)
    stages = [*range(1, count + 1), *[0] * count]
    return [
        [on_one_stage(stage, len(own), num_stages)]
        for stage, own in zip(stages, pieces.costs, strict=True)
    ]


def ends_of(run, stream):
    """When the last access of each step of a student is over."""
    ends = {}
    for access in run.accesses:
        if access.layer.stream == stream:
            y = access.sequence_id
            ends[y] = max(ends.get(y, 0), access.end_ns)
    return [ends[y] for y in sorted(ends)]


@pytest.mark.parametrize("window", [2, 5, 30])
@pytest.mark.parametrize("slow", range(4))
def test_a_slow_student_slows_nobody_within_the_window(slow, window):
    """Whoever has no block on its stage, and none behind it, takes each step at the same time.

    Beyond the window the teacher waits for the slow one, as its outputs would pile up.
    """
    register_joint_placement("teachers-first", teachers_first)
    way = Way(stages=5, placement="teachers-first", window=window)
    alike, one_slow = (
        [BlockCost(0.25, (factor if number == slow else 1.0,)) for number in range(4)]
        for factor in (1.0, 6.0)
    )
    (_, before), (_, then) = simulated(alike, way), simulated(one_slow, way)
    for student in {*range(4)} - {slow}:
        one, other = ends_of(before, student), ends_of(then, student)
        assert other[:window] == one[:window]
        is_held = [b > a for a, b in zip(one, other, strict=True)]
        assert any(is_held) == (window < 30)
    assert ends_of(then, slow)[-1] > 4 * ends_of(before, slow)[-1]


@pytest.mark.parametrize("window", [1, 3])
def test_with_a_teacher_each_nobody_is_ever_slowed(window):
    way = Way(stages=3, placement="pairs", window=window, is_relayed=False)
    costs = [[*equal(2), BlockCost(1.0, (last,))] for last in (1.0, 6.0)]
    runs = [simulated(each, way)[1] for each in costs]
    for student in (0, 1):
        assert ends_of(runs[0], student) == ends_of(runs[1], student)
    assert ends_of(runs[1], 2)[-1] > 2 * ends_of(runs[0], 2)[-1]

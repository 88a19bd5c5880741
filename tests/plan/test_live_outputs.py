"""How many outputs of a teacher's blocks are held at once: a window's for each end of a tap."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import contextmanager
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.execution import Execution
from naspipe.config.wiring import CHAIN, CREDIT
from naspipe.engine.admission import AdmissionWindow
from naspipe.engine.commands import RetireSubnet, SendOutput
from naspipe.engine.controller import StageController
from naspipe.engine.events import BlockFinished, InputArrived, TaskKind
from naspipe.plan.pipeline import plan_pipeline
from naspipe.plan.simulation import simulate_run
from scripts.blockwise_costs import BlockCost
from scripts.blockwise_simulated import Way, pipeline_of
from scripts.paper.costs import RandomCosts

STEPS = 12


class Held:
    """What each stage holds, as its driver has it: counted from what controllers say."""

    def __init__(self, taps):
        self.taps = taps
        self.passes: Counter = Counter()
        self.changes = defaultdict(list)

    def take(self, stage, event, commands):
        match event:
            case BlockFinished(_, task, block) if task.kind is TaskKind.FORWARD:
                made = sum(tap.source == (task.stream, block) for tap in self.taps)
                self._add(stage, task.stream, task.sequence_id, made)
            case InputArrived(_, task, _, name):
                self._take_input(stage, task, name)
        for command in commands:
            match command:
                case SendOutput(task, _, name) if task.stage == stage:  # it has it at once
                    self._take_input(stage, task, name)
                case RetireSubnet(stream, sequence_id):
                    held = self.passes.pop((stage, stream, sequence_id), 0)
                    self.changes[stage].append(-held)

    def _take_input(self, stage, task, name):
        if name != CHAIN and not name.startswith(CREDIT):
            self._add(stage, task.stream, task.sequence_id, 1)

    def _add(self, stage, stream, sequence_id, count):
        self.changes[stage].append(count)
        self.passes[stage, stream, sequence_id] += count

    def most(self, stage):
        return max(accumulate(self.changes[stage]), default=0)


@contextmanager
def noted(held):
    with pytest.MonkeyPatch.context() as patched:
        handle = StageController.handle

        def note(self, event):
            commands = list(handle(self, event))
            held.take(self._stage, event, commands)
            return commands

        patched.setattr(StageController, "handle", note)
        yield


def simulated(costs, way, seed):
    """A run under random delays: what was held, and the ends of taps on each stage."""
    pipeline = pipeline_of(costs, way, [way.pass_cost] * len(costs), 1000.0, STEPS)
    execution = Execution().changed(stages=way.stages, partition=way.placement)
    plan = plan_pipeline(pipeline, execution)
    held, taps = Held(pipeline.wiring.taps), pipeline.wiring.taps
    with noted(held):
        simulate_run(pipeline, plan, execution, RandomCosts(seed, 1000, 5000))
    places = [{each.partition for each in own.planned} for own in plan.streams]
    ends = Counter(
        stage
        for tap in taps
        for stream, block in (tap.source, tap.sink)
        for stage in {each.stage_of(block) for each in places[stream]}
    )
    return held, ends


block_costs = st.builds(
    BlockCost,
    st.sampled_from((0.2, 1.0, 4.0)),
    st.lists(st.sampled_from((0.5, 1.0, 6.0)), min_size=1, max_size=3).map(tuple),
)


@st.composite
def ways(draw):
    costs = draw(st.lists(block_costs, min_size=2, max_size=5))
    placement = draw(st.sampled_from(("pairs", "packed", "layers", "free", "hybrid", "shared")))
    passes = draw(st.integers(2, 4)) if placement in ("hybrid", "shared") else 1
    most = {"shared": passes, "hybrid": len(costs)}.get(placement, len(costs))
    way = Way(
        stages=draw(st.integers(1, min(4, most))), placement=placement, passes=passes,
        window=draw(st.integers(1, 5)), has_barrier=draw(st.booleans()),
        # A teacher's stream of several blocks on several stages, which only comparisons have, runs
        # ahead where it has no tap: nothing is held there, and its taps' stage takes what comes.
        is_relayed=placement not in ("pairs", "packed") or draw(st.booleans()),
    )  # fmt: skip
    return costs, way


@settings(max_examples=40, deadline=None)
@given(ways(), st.integers(0, 999))
def test_a_window_for_each_end_of_a_tap(drawn, seed):
    costs, way = drawn
    held, ends = simulated(costs, way, seed)
    under_way = way.passes * (1 if way.has_barrier else way.window)
    for stage in range(way.stages):
        assert held.most(stage) <= under_way * ends[stage], stage
        assert not +held.passes, "all were given back"


def test_without_windows_it_is_seen(monkeypatch):
    """A teacher that nobody holds back is far ahead of a slow student."""
    costs = [BlockCost(0.2, (1.0,)), BlockCost(0.2, (6.0,))]
    way = Way(stages=2, placement="pairs", window=2)
    held, ends = simulated(costs, way, 0)
    assert 2 <= max(map(held.most, ends)) <= 2 * max(ends.values())
    made = AdmissionWindow.__init__
    monkeypatch.setattr(
        AdmissionWindow, "__init__",
        lambda self, _, *rest, **more: made(self, STEPS, *rest, **more),
    )  # fmt: skip
    held, ends = simulated(costs, way, 0)
    assert any(held.most(stage) > 2 * ends[stage] for stage in ends)

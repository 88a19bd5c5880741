"""Partitions that go round the stages."""

from __future__ import annotations

from itertools import pairwise

import pytest

from naspipe.api.simulate import table5_scenario
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.ids import Subnet
from naspipe.config.rules import Exact
from naspipe.plan import latest_start, simulation
from naspipe.plan.chains import Chain, Stream
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.latest_start import CutStream, latest_start_priorities
from naspipe.plan.partitions import RotatedPlacement
from naspipe.plan.pipeline import Pipeline, plan_pipeline
from naspipe.plan.simulation import chosen_plan, measured_timing
from tests.registries import orders_for_comparison

COSTS = CostTable({(b, c): LayerCost(10 + b, 20 + c, 0) for b in range(8) for c in range(3)})
SUBNETS = [Subnet(0, y, tuple((y + b) % 3 for b in range(8))) for y in range(9)]


def stages_of(cut, subnet):
    return [*dict.fromkeys(map(cut(subnet).stage_of, range(8)))]


@pytest.fixture
def in_parts(monkeypatch):
    """What cuts subnets into so many parts."""

    def make(parts, stages):
        monkeypatch.setattr(RotatedPlacement, "_fastest", lambda cut, subnets: parts)
        return RotatedPlacement(SUBNETS, [False] * 8, COSTS, stages)

    return make


def test_each_subnet_begins_a_stage_further(in_parts):
    cut = in_parts(4, 4)
    found = [stages_of(cut, subnet) for subnet in SUBNETS]
    assert found[:5] == [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1], [3, 0, 1, 2], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("parts", "stages", "expected"),
    [
        (3, 8, [[0, 3, 6], [1, 4, 7], [2, 5, 0]]),
        (2, 4, [[0, 2], [1, 3], [2, 0]]),
        (3, 4, [[0, 1, 2], [1, 2, 3], [2, 3, 0]]),
        (4, 7, [[0, 2, 4, 6], [1, 3, 5, 0], [2, 4, 6, 1]]),
        (4, 8, [[0, 2, 4, 6], [1, 3, 5, 7], [2, 4, 6, 0]]),
    ],
)
def test_few_parts_are_far_from_each_other(in_parts, parts, stages, expected):
    cut = in_parts(parts, stages)
    assert [stages_of(cut, subnet) for subnet in SUBNETS[:3]] == expected
    found = cut(SUBNETS[0])
    assert sum(len(found.blocks(stage)) for stage in range(stages)) == 8
    assert sum(not found.blocks(stage) for stage in range(stages)) == stages - parts


def test_as_many_parts_as_are_fastest(monkeypatch):
    """Blocks of cv.c3 are few and unequal: parts of few of them are more so."""
    scenario = table5_scenario("cv.c3", with_shared=False)
    how = Execution(
        stages=8, window=32, recompute=True, partition="rotated", order="latest-start",
        backward="whole",
    )  # fmt: skip
    pipeline = scenario.pipeline("fair", 0, 240)

    def found():
        plan = scenario.plan(pipeline, how)
        cuts = plan.streams[0].partitions
        parts = {sum(low < high for low, high in pairwise(cut.bounds)) for cut in cuts}
        return parts, scenario.run(pipeline, how, plan).summary.bubble_ratio

    few, chosen = found()
    monkeypatch.setattr(RotatedPlacement, "_fastest", lambda cut, subnets: 8)
    all_of_them, before = found()
    assert all_of_them == {8} and few <= {3, 4} and chosen < before - 0.005


def test_parts_with_shared_layers_stay():
    cut = RotatedPlacement(SUBNETS, [True, *[False] * 6, True], COSTS, 4)
    found = [stages_of(cut, subnet) for subnet in SUBNETS]
    assert found[:3] == [[0, 1, 2, 3], [0, 2, 1, 3], [0, 1, 2, 3]]


def chosen(sampler, **execution):
    scenario = table5_scenario("nlp.c3", with_shared=False)
    how = Execution(
        **{"stages": 4, "window": 32, "recompute": True, "backward": "whole", **execution}
    )
    pipeline = scenario.pipeline(sampler, 0, 60)
    plan = scenario.plan(pipeline, how)
    bubble = scenario.run(pipeline, how, plan).summary.bubble_ratio
    return any(each.stages for each in plan.streams[0].partitions), bubble


def test_it_is_chosen_where_it_pays():
    """Rounds of fair draws begin together; uniform ones wait for each other anyway."""
    goes_round, bubble = chosen("fair")
    stays, before = chosen("fair", partition="balanced")
    assert goes_round and not stays and bubble < before - 0.05
    assert not chosen("uniform")[0]


@pytest.fixture
def orders():
    with orders_for_comparison():
        yield


@pytest.mark.usefixtures("orders")
def test_it_is_left_where_something_is_in_its_way():
    for other in ({"memory_budget": "3x"}, {"order": "model-parallel"}, {"order": "gpipe"}):
        assert not chosen("fair", **other)[0], other
    assert chosen("fair", order="latest-start")[0]
    scenario = table5_scenario("nlp.c3", with_shared=False)
    asked = Execution(stages=4, partition="rotated", order="model-parallel")
    with pytest.raises(ConfigError, match=r"partition=rotated: expected .* holds no task back"):
        plan_pipeline(scenario.pipeline("fair", 0, 12), asked)


def test_it_is_not_chosen_where_nothing_could_go_round(monkeypatch):
    """Parts with shared layers on both stages: other cuts alone are no reason."""
    monkeypatch.setattr(simulation, "WORTH", 0.0)
    chosen = []
    for ends in (True, False):
        shared = (ends, *[False] * 6, ends)
        chain = Chain(rules=(Exact(),) * 8, is_shared=shared)
        subnets = [Subnet(0, y, (0, *[y % 3] * 6, 0)) for y in range(9)]
        pipeline = Pipeline(streams=(Stream(chain, tuple(subnets), COSTS),))
        how = Execution(stages=2)
        plan = chosen_plan(
            pipeline, how, None, lambda one, memory, how=how: measured_timing(one, how, memory)
        )
        chosen.append(bool(plan.chosen))
    assert chosen == [False, True]


def test_rounds_of_improvement_make_it_faster_and_pieces_hardly_slower(monkeypatch):
    scenario = table5_scenario("cv.c3", with_shared=False)
    how = Execution(
        stages=8, window=32, recompute=True, partition="rotated", order="latest-start",
        backward="whole",
    )  # fmt: skip
    pipeline = scenario.pipeline("fair", 0, 240)
    found = []
    for rounds, piece in ((0, 1024), (8, 1024), (8, 80)):
        monkeypatch.setattr(latest_start, "SHARE", 1.0)
        monkeypatch.setattr(latest_start, "MOST_ROUNDS", rounds)
        monkeypatch.setattr(latest_start, "PIECE", piece)
        found.append(scenario.run(pipeline, how).summary.bubble_ratio)
    whole, improved, in_pieces = found
    assert improved < whole - 0.02 and in_pieces < whole - 0.01


def test_levels_go_on_from_piece_to_piece(monkeypatch):
    """One stage: what is left until the end is known exactly."""
    monkeypatch.setattr(latest_start, "PIECE", 10)
    costs = CostTable({(0, c): LayerCost(10, 20, 0) for c in range(40)})
    subnets = [Subnet(0, y, (y,)) for y in range(40)]
    cut = RotatedPlacement(subnets, [False], costs, 1)
    stream = CutStream(
        subnets=subnets, partitions=list(map(cut, subnets)), rules=[Exact()], costs=costs
    )
    (found,) = latest_start_priorities([stream], window=1)
    assert [each.forward for each in found] == [(30 * (40 - y),) for y in range(40)]

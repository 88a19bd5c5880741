"""AMPA makes the printed moves, ends, is never better than balanced, and can be registered."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.api.simulate import table5_scenario
from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.plan.partitions import balanced_partition
from scripts.paper import ampa
from scripts.paper.ampa import ampa_cuts, ampa_partition, projected_ns, sums

COSTS = st.lists(st.integers(1, 1000), min_size=1, max_size=24)


def test_its_moves():
    """Normalised 0, .5, 1, 0, .5, 0: the first takes from the middle, then it is dearest."""
    cuts = [(0, 2, 4, 6), (0, 3, 4, 6), (0, 2, 4, 6)]
    assert list(ampa_cuts([1, 2, 3, 1, 2, 1], 3)) == cuts


def test_it_moves_layers_through_a_neighbour_to_the_dearest():
    cuts = list(ampa_cuts([9, 9, 5, 1, 1, 1, 1, 2], 4))
    assert cuts[0] == (0, 2, 4, 6, 8)
    assert all(len(set(one) ^ set(other)) == 2 for one, other in itertools.pairwise(cuts))


@given(COSTS, st.integers(1, 8))
def test_it_ends_and_never_beats_the_balanced_one(costs, stages):
    stages = min(stages, len(costs))
    cuts = list(ampa_cuts(costs, stages))
    assert all(high > low for cut in cuts for low, high in itertools.pairwise(cut))
    found = ampa_partition(costs, stages)
    least = balanced_partition([float(cost) for cost in costs], stages)
    assert max(sums(costs, found.bounds)) >= max(sums(costs, least.bounds))
    assert max(sums(costs, found.bounds)) <= max(sums(costs, cuts[0]))


def test_its_projection():
    """The paper's terms by hand: stages of 10, 8 and 14 ms, 8 passes."""
    assert projected_ns([10, 8, 14], 8) == 130
    assert projected_ns([10, 8, 14], 1) == 32
    for stages, passes in ((2, 4), (4, 8), (8, 8)):
        gain = passes * projected_ns([1] * stages, 1) / projected_ns([1] * stages, passes)
        assert gain == pytest.approx(stages * passes / (passes + stages - 1))


def test_more_stages_than_blocks():
    with pytest.raises(ConfigError, match="expected 1 to 2 stages for 2 blocks, found 3"):
        ampa_partition([1, 2], 3)


def test_it_is_chosen_by_its_name_once_it_is_registered():
    with pytest.raises(ConfigError, match="partition: expected auto or balanced"):
        Execution(stages=2, partition="ampa")
    ampa.register()
    scenario = table5_scenario("cv.c3", with_shared=False)
    pipeline = scenario.pipeline("uniform", 0, 6)
    plan = scenario.plan(pipeline, Execution(stages=2, partition="ampa"))
    cuts = set(plan.streams[0].partitions)
    assert len(cuts) == 1

"""A tree over the passes of a step: sums go from group to group in log2 hops, and not in a row."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.ids import AccessKind, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact
from naspipe.config.steps import Steps
from naspipe.engine.builder import build_admission, build_controller
from naspipe.engine.events import LAYER, SUM
from naspipe.engine.invariants import violations
from naspipe.engine.writes import Writes
from naspipe.plan.virtual_driver import simulate
from naspipe.worker.blocks.ports import Tree

LATENCY_NS = 1_000_000
TREE, FOLD = Steps(8, reduction="tree"), Steps(8)


class FarApart:
    """Only sums take long on their way."""

    def __init__(self):
        self.num_sums = 0

    def access_ns(self, layer, kind, sequence_id=-1):
        return {AccessKind.FORWARD: 100, AccessKind.BACKWARD: 200, AccessKind.WRITE: 10}[kind]

    def add_ns(self, layer, sequence_id):
        return 0

    def make_ns(self, layer):
        return 0

    def between_ns(self, parcels=0):
        return 0

    def message_ns(self, receiver):
        return 0

    def push_ns(self, layer, parcel=LAYER):
        self.num_sums += parcel == SUM
        return LATENCY_NS if parcel == SUM else 0

    def copy_ns(self, layer):
        return 0


def one_step(steps, groups, stages=1):
    """A step of a plain network of four blocks; its length in hops, and how many sums went."""
    rules, costs = [Exact()] * 4, FarApart()
    subnets = [Subnet(0, y, (0,) * 4) for y in range(steps.passes)]
    cut = Partition(tuple(range(0, 5, 4 // stages)))
    cuts = [cut.in_group(steps.group(y, groups), groups) for y in range(steps.passes)]
    controllers = [
        build_controller(stage, [rules], steps=steps, buffered=())
        for stage in range(groups * stages)
    ]
    logs = simulate(
        lambda _, y: (subnets[y], cuts[y], None), controllers, costs,
        lambda: [build_admission("csp", len(subnets), window=64, steps=steps)],
    )  # fmt: skip
    accesses = [access for log in logs for access in log]
    assert list(violations(accesses, rules, subnets, steps=steps, buffered=())) == []
    return max(access.end_ns for access in accesses) // LATENCY_NS, costs.num_sums


@pytest.mark.parametrize(
    ("groups", "stages", "of_tree", "of_fold"),
    [(8, 1, 3, 7), (8, 2, 3, 7), (4, 1, 2, 3), (2, 2, 1, 1), (3, 1, 1, 2), (5, 1, 2, 4)],
)
def test_hops_on_the_critical_path(groups, stages, of_tree, of_fold):
    """As many sums are sent in both."""
    assert one_step(TREE, groups, stages) == (of_tree, 4 * (groups - 1))
    assert one_step(FOLD, groups, stages) == (of_fold, 4 * (groups - 1))


@given(st.sampled_from([1, 2, 4, 8, 16]), st.data())
def test_every_sum_comes_to_the_last_stage(passes, data):
    """Whichever passes are the last of their stage, in log2 hops at most, each sum once."""
    lasts = sorted(data.draw(st.sets(st.integers(0, passes - 1), min_size=1)))
    taker = dict(Steps(passes, reduction="tree").handed_on([3 * passes + each for each in lasts]))
    assert sorted(taker) == list(range(len(lasts) - 1))
    assert all(giver < receiver for giver, receiver in taker.items())
    for place in range(len(lasts)):
        hops = 0
        while place in taker:
            place, hops = taker[place], hops + 1
        assert place == len(lasts) - 1 and 2**hops <= passes


def test_where_groups_are_halves_one_part_is_sent():
    for num_groups in (2, 4, 8):
        last = [8 // num_groups * (group + 1) - 1 for group in range(num_groups)]
        trees = [Tree(8) for _ in last]
        for number in range(8):
            trees[TREE.group(number, num_groups)].add(number, {})
        for giver, receiver in TREE.handed_on(last):
            assert len(trees[giver].parts) == 1
            trees[receiver].join(trees[giver].parts)
        assert list(trees[-1].parts) == [(0, 8)]


def test_the_pairs_of_eight_groups():
    pairs = [(0, 1), (1, 3), (2, 3), (3, 7), (4, 5), (5, 7), (6, 7)]
    assert TREE.handed_on(range(8)) == pairs
    assert FOLD.handed_on(range(8)) == [(n, n + 1) for n in range(7)]
    for few in combinations(range(8), 2):
        assert TREE.handed_on(few) == [(0, 1)]


def test_a_sum_that_leaves_too_early_is_seen(monkeypatch):
    """The step then ends before all of it has come, or what came has nowhere to go."""
    monkeypatch.setattr(Writes, "lacks_sum", lambda *_: False)
    assert one_step(TREE, 8)[0] < 3

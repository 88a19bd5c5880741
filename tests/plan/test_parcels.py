"""Layers that move between stages take these stages' own time, beside that of their way."""

from __future__ import annotations

from naspipe.config.ids import Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.virtual_costs import TableCosts
from tests.plan.test_causal_bound import table
from tests.plan.test_causal_order import run

RULES = [Exact()] * 4
SUBNETS = [Subnet(0, y, (0, 1, 2, 3)) for y in range(8)]
STILL = [Partition((0, 2, 4))] * 8
MOVING = [Partition((0, 1 + y % 2, 4)) for y in range(8)]
"""Block 1 changes sides with every subnet."""


def end(partitions, parcel_ns):
    timing = TableCosts(table=table(RULES), link_ns=0, parcel_ns=parcel_ns)
    return max(access.end_ns for access in run(RULES, SUBNETS, partitions, timing))


def test_only_layers_that_move_cost_it():
    assert end(STILL, 1000) == end(STILL, 0)
    assert end(MOVING, 1000) > end(MOVING, 0)


def test_who_waits_for_a_layer_pays_for_taking_it():
    """All subnets share all layers, so each of seven moves is waited for. Who sends has time."""
    assert end(MOVING, 1000) - end(MOVING, 0) == 7 * 1000


def test_who_sends_while_it_has_work_pays_for_that():
    """Subnets that share nothing but block 1 of one in two: nobody waits, and all is later."""
    subnets = [Subnet(0, y, (y, y // 2, y, y)) for y in range(8)]
    partitions = [Partition((0, 2 - y % 2, 4)) for y in range(8)]

    def last(parcel_ns):
        timing = TableCosts(table=table(RULES), link_ns=0, parcel_ns=parcel_ns)
        log = run(RULES, subnets, partitions, timing)
        return max(access.end_ns for access in log if access.stage == 0)

    assert last(1000) > last(0)


def test_layers_are_made_once_on_each_stage():
    """Making them takes its time before their first block there, and not again."""
    rules = [Exact()]
    subnets = [Subnet(0, y, (0,)) for y in range(3)]
    partitions = [Partition((0, 1))] * 3
    for make_ns in (0, 700):
        costs = CostTable({(0, 0): LayerCost(10, 20, 5, make_ns)})
        log = run(rules, subnets, partitions, TableCosts(table=costs, link_ns=0))
        assert max(access.end_ns for access in log) == 3 * 35 + make_ns

"""A dispatch order: the newest subnet first, by one registration."""

from __future__ import annotations

from naspipe.stage.builder import register_order
from tests.capabilities import simulated


class NewestFirst:
    max_run = 1

    def key(self, task, priority):
        return (-task.sequence_id, task.kind.value, task.stream, task.section)


def test_an_order_of_ones_own():
    register_order("newest", lambda streams: NewestFirst())
    stream = simulated.subnets(0)
    orders = {}
    for order in ("newest", "paper"):
        accesses = simulated.run([stream], lambda subnet: (0, 3, 6), order=order)
        first = [access for access in accesses if access.stage == 0]
        orders[order] = [(access.sequence_id, access.kind) for access in first]
    assert orders["newest"] != orders["paper"]

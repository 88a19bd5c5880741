"""Layers without state on one stage: nobody waits for them, and nothing writes them."""

from __future__ import annotations

from naspipe.config.ids import LayerId
from naspipe.config.rules import Exact, PartlyFrozen
from naspipe.engine.commands import RetireSubnet, WriteLayer
from tests.engine.test_controller import Driver, runs


def test_layers_without_state_let_subnets_pass():
    """Subnet 1 goes through what subnet 0 still has to come back through."""
    d = Driver(0, (0, 2, 3), rules=[PartlyFrozen(Exact(), frozenset({1})), Exact(), Exact()])
    d.admit(1, 0, 0), d.admit(1, 1, 0), d.admit(0, 0, 0)
    d.block("0F", 0)
    assert d.block("0F", 1)[-1] == runs("0.1F@0", (0, 1, -1), (1, 1, -1))
    d.block("1F", 0)
    assert d.block("1F", 1)[-1] == d.record(1, 1, 1, "F", -1), "subnet 2 waits for layer 1.0"
    d.input("0B"), d.block("0B", 1)
    write = WriteLayer(LayerId(0, 1, 0), 0, -1, False)
    assert d.block("0B", 0) == [d.record(0, 1, 0, "B", -1), write], "of the other layer only"
    assert d.written(1, 0, 0)[1] == RetireSubnet(0, 0)

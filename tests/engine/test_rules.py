"""What a stage does of layers that lag, or that are frozen."""

from __future__ import annotations

from naspipe.config.rules import Exact, Frozen, Lag
from naspipe.engine.commands import DropVersion, RetireSubnet, WriteLayer
from tests.engine.test_controller import Driver, layer, runs


def test_lag_keeps_the_base_that_is_still_read():
    d = Driver(0, (0, 1), rules=[Lag(1)])
    assert d.admit(0) == [runs("0.0F@0", (0, 0, -1))]
    d.admit(0), d.admit(0)
    assert d.block("0F", 0)[-1] == runs("0.0B@0", (0, 0, -1))
    assert d.block("0B", 0)[-1] == WriteLayer(layer(0, 0), 0, -1, True)
    done = d.written(0, 0, 0)
    assert done[1:] == [RetireSubnet(0, 0), runs("0.1F@0", (0, 0, -1))]
    d.block("1F", 0)
    assert d.block("1B", 0) == [
        DropVersion(layer(0, 0), -1),
        d.record(0, 0, 1, "B", -1),
        WriteLayer(layer(0, 0), 1, 0, True),
    ]
    assert d.written(0, 0, 1)[-1] == runs("0.2F@0", (0, 0, 0))


def test_lag_writes_in_sequence_order_whatever_the_order_of_backwards():
    d = Driver(0, (0, 1, 2), rules=[Lag(2), Exact()])
    d.admit(0, 0), d.admit(0, 1)
    d.block("0F", 0), d.block("1F", 0)
    assert d.input("1B") == [runs("0.1B@0", (0, 0, -1))]
    assert d.block("1B", 0) == [d.record(0, 0, 1, "B", -1)], "no WRITE yet: subnet 0 owes one"
    assert d.controller.unfinished[1] == "0.1B@0 waits for 1 WRITEs before its own"
    assert d.input("0B") == [runs("0.0B@0", (0, 0, -1))]
    assert d.block("0B", 0)[-1] == WriteLayer(layer(0, 0), 0, -1, True)
    assert d.written(0, 0, 0) == [
        d.record(0, 0, 0, "W", 0), RetireSubnet(0, 0), WriteLayer(layer(0, 0), 1, 0, True)
    ]  # fmt: skip
    assert d.written(0, 0, 1) == [d.record(0, 0, 1, "W", 1), RetireSubnet(0, 1)]


def test_frozen_layers_are_not_written():
    d = Driver(0, (0, 2), rules=[Frozen(), Exact()])
    d.admit(0, 0), d.admit(0, 1)
    d.block("0F", 0), d.block("0F", 1), d.block("0B", 1)
    write = WriteLayer(layer(1, 0), 0, -1, False)
    assert d.block("0B", 0) == [d.record(0, 0, 0, "B", -1), write], "of the other layer only"
    assert d.written(1, 0, 0) == [
        d.record(1, 0, 0, "W", 0), RetireSubnet(0, 0), runs("0.1F@0", (0, 0, -1), (1, 1, -1))
    ]  # fmt: skip

"""Layers that leave the device between a forward and its backward: bits of the plain loop."""

from __future__ import annotations

import time

import pytest

from naspipe.machine.emulated import EmulatedDevice
from naspipe.machine.out_of_memory import LayerUse
from naspipe.worker.layers.resident_layer import LayerMemory
from naspipe.worker.placement import SwappedPlacement
from tests.worker import small_parts
from tests.worker.blocks.stages_by_hand import FORWARD, Stages, expected
from tests.worker.layers.swapped_layers import MovingDevice
from tests.worker.small_parts import Lending, Residual, Stashing, layer, plain_loop, workload
from tests.worker.tasks import task


def evicted_between(monkeypatch, kind, device):
    """Forwards that the backward computes, and whether the bits are those of the plain loop."""
    monkeypatch.setattr(small_parts, "Residual", kind)
    limits = LayerUse(0, 1 << 16, 1)
    devices = [device(1 << 16, 1e12, 0.0) for _ in range(2)]
    made = [SwappedPlacement(d, [workload().recipe], limits, None) for d in devices]
    with made[0], made[1]:
        stages = Stages(placements=made)
        for block in range(4):
            _ = stages.of(block).layer(layer(0, block))
            swap(stages.of(block).placement, layer(0, block))
        stages.forward(0, range(2))
        compute, used = stages.computes[0], layer(0, 1)
        compute.placement.save(used)
        settle(compute.placement)
        compute.evict(used)
        stages.forward(0, range(2, 4))
        before = kind.forwards
        left = compute.placement._memories[used].state_bytes
        compute.placement._device.allocate(left)  # so that it comes back elsewhere
        swap(compute.placement, used)
        stages.backward(0)
        again = kind.forwards - before
        stages.write(0)
        return again, stages.tensors() == expected(plain_loop(1))


@pytest.mark.parametrize("device", [EmulatedDevice, MovingDevice])
@pytest.mark.parametrize("kind", [Residual, Stashing, Lending])
def test_a_layer_may_be_evicted_between_forward_and_backward(monkeypatch, kind, device):
    """Its graph stays, whoever holds the layer's memory."""
    assert evicted_between(monkeypatch, kind, device) == (0, True)


def test_a_layer_that_comes_back_to_other_memory_is_seen(monkeypatch):
    """A graph would look for its weights in memory that is nobody's by then."""
    none = property(lambda self: None, lambda self, piece: None)
    monkeypatch.setattr(LayerMemory, "piece", none, raising=False)
    assert evicted_between(monkeypatch, Stashing, EmulatedDevice) == (0, False)


@pytest.mark.parametrize("is_copied", [True, False])
def test_what_a_block_hands_on_is_not_the_layers_memory(monkeypatch, is_copied):
    """The next block's backward needs the output, and the layer is not on the device then."""
    monkeypatch.setattr(small_parts, "Residual", Lending)
    if not is_copied:
        monkeypatch.setattr(LayerMemory, "apart", lambda self, tensor: tensor)
    device, recipe = EmulatedDevice(1 << 16, 1e12, 0.0), workload().recipe
    with SwappedPlacement(device, [recipe], LayerUse(0, 1 << 16, 1), None) as place:
        stages = Stages(placements=[place, place])
        for block in range(2):
            _ = stages.of(block).layer(layer(0, block))
            swap(place, layer(0, block))
        stages.forward(0, range(2))
        (handed,) = stages.computes[0].output(task(0, FORWARD, 0))
        piece = place._memories[layer(0, 1)].piece
        shares = handed.untyped_storage().data_ptr() == piece.untyped_storage().data_ptr()
        assert shares is not is_copied and handed.requires_grad and handed.is_leaf


def swap(placement, used):
    placement.load(used)
    settle(placement)


def settle(placement):
    time.sleep(placement.left_seconds)
    assert len(placement.take_finished()) == 1

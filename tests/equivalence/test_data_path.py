"""Runs whose activations take other ways leave the same bits: over gloo and host memory, on CPU."""

from __future__ import annotations

import pytest
from torch import nn

from naspipe.api import training
from naspipe.wire import device_rings, nccl_path
from tests.equivalence import spaces
from tests.equivalence.harness import check, restless
from tests.thinned import long
from tests.wire.host_memory import HostMemory


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (spaces.mixed, spaces.vectors),
        long(spaces.several, spaces.vectors),
        (spaces.maps, spaces.images),
    ],
)
def test_the_same_bits(tmp_path, monkeypatch, make, data):
    usual, used = nccl_path.Pairs.send, tmp_path / "used"

    def send(pairs, stage, tensors):
        used.touch()  # in a stage's process
        usual(pairs, stage, tensors)

    monkeypatch.setattr(nccl_path, "BACKEND", "gloo")
    monkeypatch.setattr(nccl_path.Pairs, "send", send)
    monkeypatch.setattr(training, "check_data_path", lambda *_: None)
    check(
        tmp_path, make(), data, nn.CrossEntropyLoss(), steps=20, stages=(3,),
        execution={"data_path": "nccl"},
    )  # fmt: skip
    assert used.exists()


@pytest.mark.parametrize(
    ("make", "data", "stages", "ring_bytes"),
    [
        long(spaces.mixed, spaces.vectors, 2, 1 << 20),
        (spaces.mixed, spaces.vectors, 2, 12 * 24 * 4),
        long(spaces.several, spaces.vectors, 3, 2 * 12 * 24 * 4),
        (spaces.maps, spaces.images, 2, 4 * 8 * 8 * 8 * 4),
    ],
)
def test_the_same_bits_by_cuda_ipc(tmp_path, monkeypatch, make, data, stages, ring_bytes):
    """Layers move from stage to stage, too; the smallest rings have room for one input."""
    usual, taken = device_rings.DeviceRings.take, tmp_path / "taken"

    def take(rings, message):
        taken.touch()  # in a stage's process
        return usual(rings, message)

    restless(monkeypatch)
    monkeypatch.setattr(device_rings, "MEMORY", HostMemory)
    monkeypatch.setattr(device_rings, "RING_BYTES", ring_bytes)
    monkeypatch.setattr(device_rings.DeviceRings, "take", take)
    monkeypatch.setattr(training, "check_data_path", lambda *_: None)
    check(
        tmp_path, make(), data, nn.CrossEntropyLoss(), steps=20, stages=(stages,),
        execution={"data_path": "cuda_ipc"},
    )  # fmt: skip
    assert taken.exists()

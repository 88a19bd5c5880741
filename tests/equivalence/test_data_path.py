"""A run whose activations take the second data path leaves the same bits: over gloo, on CPU."""

from __future__ import annotations

import pytest
from torch import nn

from naspipe.frontend.training import training
from naspipe.runtime.wire import nccl_path
from tests.equivalence import spaces
from tests.equivalence.harness import check


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (spaces.mixed, spaces.vectors),
        (spaces.several, spaces.vectors),
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

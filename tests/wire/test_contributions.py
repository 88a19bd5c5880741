"""Contributions on their way between stages: every bit, and nothing that is none."""

from __future__ import annotations

import math
from collections import deque

import msgpack
import pytest
import torch

from naspipe.config.errors import TransportError
from naspipe.wire.messages import ContributionMessage, read_message, stage_frames
from naspipe.wire.transport import NoTransport, Wakeup

NORMS = {"0.3": 0.1, "2.0": math.inf, "7.1": 5e-324, "7.2": -0.0}


def sent(values):
    header, *frames = stage_frames(ContributionMessage("norms", 1, 8, 2, values))
    return read_message(header, frames)


def test_every_bit_arrives():
    found = sent(NORMS)
    assert found[:4] == ("norms", 1, 8, 2)
    assert {name: norm.hex() for name, norm in found.values.items()} == {
        name: norm.hex() for name, norm in NORMS.items()
    }
    assert math.isnan(sent({"0.0": math.nan}).values["0.0"])


def test_tensors_arrive_beside_plain_values():
    gradient = torch.tensor([[1.5, -0.0], [math.nan, 2.0]]).t()
    found = sent({"3.1/weight": gradient, "passes": 4}).values
    assert found["passes"] == 4 and found["3.1/weight"].stride() == gradient.stride()
    assert found["3.1/weight"].view(torch.int32).tolist() == gradient.view(torch.int32).tolist()


@pytest.mark.parametrize(
    ("subject", "entries"),
    [
        (["norms", 1, 2], []), (["norms", 1, 2, 3], [[0, 1]]), (["norms", 1, 2, "x"], []),
        ([7, 1, 2, 3], []), (["norms", 1, 2, 3], [["w", True, None]]), (5, []),
    ],
)  # fmt: skip
def test_garbage_is_refused(subject, entries):
    with pytest.raises(TransportError, match="cannot be read"):
        read_message(msgpack.packb(["contribution", subject, entries]), [])


def test_one_stage_has_nobody_to_tell():
    with Wakeup() as wakeup, pytest.raises(TransportError, match="there is only one"):
        NoTransport(deque(), wakeup).send(1, ContributionMessage("norms", 0, 0, 0, {}))

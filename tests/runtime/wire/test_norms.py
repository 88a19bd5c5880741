"""Norms on their way between stages: every bit, and nothing that is none."""

from __future__ import annotations

import math
from collections import deque

import msgpack
import pytest

from naspipe.core.errors import TransportError
from naspipe.runtime.wire.messages import NormsMessage, norms_frames, read_message
from naspipe.runtime.wire.transport import NoTransport
from naspipe.runtime.wire.wakeup import Wakeup

NORMS = {(0, 3): 0.1, (2, 0): math.inf, (7, 1): 5e-324, (7, 2): -0.0}


def test_every_bit_arrives():
    (frame,) = norms_frames(NormsMessage(1, 8, 2, NORMS))
    found = read_message(frame, [])
    assert found[:3] == (1, 8, 2)
    assert {place: norm.hex() for place, norm in found.norms.items()} == {
        place: norm.hex() for place, norm in NORMS.items()
    }
    nan = read_message(norms_frames(NormsMessage(0, 0, 0, {(0, 0): math.nan}))[0], [])
    assert math.isnan(nan.norms[0, 0])


@pytest.mark.parametrize(
    ("subject", "entries"),
    [([1, 2], []), ([1, 2, 3], [[0, 1]]), ([1, 2, "x"], []), ([1, 2, 3], [[0, 1, "x"]]), (5, [])],
)
def test_garbage_is_refused(subject, entries):
    with pytest.raises(TransportError, match="cannot be read"):
        read_message(msgpack.packb(["norms", subject, entries]), [])


def test_one_stage_has_nobody_to_tell():
    with Wakeup() as wakeup, pytest.raises(TransportError, match="only one stage"):
        NoTransport(deque(), wakeup).send_norms(1, NormsMessage(0, 0, 0, {}))

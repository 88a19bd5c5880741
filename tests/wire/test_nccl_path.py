"""The second data path, over gloo in host memory: the same code but for NCCL itself."""

from __future__ import annotations

import pytest
import torch

from naspipe.config.errors import TransportError
from naspipe.config.ids import StageId
from naspipe.wire import nccl_path
from naspipe.wire.endpoints import ipc_endpoints
from naspipe.wire.messages import InputMessage, announcement_frames, read_message
from naspipe.wire.nccl_path import NcclTransport, Pairs, ordered_pairs
from naspipe.wire.transport import Wakeup, ZmqTransport
from tests.wire.all_to_all import STAGES, run, task, tensors

CPU = torch.device("cpu")


def open_transport(stage, endpoints, stack):
    nccl_path.BACKEND = "gloo"
    inner = ZmqTransport(stage, endpoints, stack.enter_context(Wakeup()))
    return NcclTransport(inner, Pairs(stage, STAGES, CPU, endpoints.directory, 60.0))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_every_stage_sends_to_every_other_at_once(tmp_path):
    run(tmp_path, open_transport)


def test_pairs_are_opened_in_one_order_by_all():
    assert ordered_pairs(1) == []
    assert ordered_pairs(3) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


def test_an_announcement_says_all_but_the_bytes():
    sent = tensors(0, 1, 0)
    (header,) = announcement_frames(StageId(2), InputMessage(task(7, 1), (task(8, 1),), sent))
    found = read_message(header, [])
    assert (found.sender, found.task, found.upcoming) == (2, task(7, 1), (task(8, 1),))
    assert [entry and entry[0] for entry in found.entries] == [
        "float32", None, "float32", "bfloat16",
    ]  # fmt: skip


def test_an_announcement_on_a_stage_without_the_path_is_refused(tmp_path):
    endpoints = ipc_endpoints(tmp_path, 1)
    with Wakeup() as wakeup, ZmqTransport(StageId(0), endpoints, wakeup) as transport:
        transport.announce(0, InputMessage(task(3, 0), (), (torch.zeros(2),)))
        with pytest.raises(TransportError, match="a way that is not open here"):
            transport.receive(10.0)

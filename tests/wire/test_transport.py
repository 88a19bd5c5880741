"""Two stages' transports in one process, over real sockets: bits, order, waits, refusals."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
import zmq

from naspipe.config.errors import TransportError
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.engine.events import TaskKind
from naspipe.wire import transport
from naspipe.wire.endpoints import ipc_endpoints, tcp_endpoints
from naspipe.wire.messages import (
    HOLD,
    ContributionMessage,
    ControlMessage,
    InputMessage,
    VersionMessage,
    launcher_frames,
)
from naspipe.wire.transport import NoTransport, Wakeup, ZmqTransport, connect_outbox
from tests.cli.test_bad_input import free_ports
from tests.oracle import bits
from tests.worker.tasks import task

SECONDS = 20.0
"""Deadline of every wait."""
LAYER = LayerId(FIRST_STREAM, 3, 1)


def endpoints_of(kind, path):
    return ipc_endpoints(path, 2) if kind == "ipc" else tcp_endpoints(free_ports(3), 2, path)


def inputs(sequence_id, stage, tensors, upcoming=()):
    """The input of a forward."""
    given = task(sequence_id, TaskKind.FORWARD, stage)
    return InputMessage(given, tuple(upcoming), tuple(tensors))


@pytest.fixture(params=["ipc", "tcp"])
def endpoints(request, tmp_path_factory):
    return endpoints_of(request.param, tmp_path_factory.mktemp("s"))


@pytest.fixture
def pair(endpoints):
    """The transports of both stages, and the wakeup of the second one."""
    with ExitStack() as stack:
        wakeups = [stack.enter_context(Wakeup()) for _ in range(2)]
        made = [
            stack.enter_context(ZmqTransport(stage, endpoints, wakeup))
            for stage, wakeup in enumerate(wakeups)
        ]
        yield *made, wakeups[1]


TENSORS = [
    torch.tensor([[0.0, -0.0, float("nan")], [float("inf"), 1e-45, -1.5]]),
    None,
    torch.arange(24, dtype=torch.float32).reshape(2, 3, 4).transpose(0, 2),
    torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.tensor([1.0, -2.5], dtype=torch.bfloat16),
    torch.tensor([True, False]),
    torch.empty(0, 3),
    torch.tensor(7, dtype=torch.int64),
]


def test_an_input_arrives_with_every_bit_shape_and_stride(pair):
    one, other, _ = pair
    upcoming = [task(6, TaskKind.FORWARD, 1), task(7, TaskKind.FORWARD, 1)]
    one.send(1, inputs(5, 1, TENSORS, upcoming))
    message = other.receive(SECONDS)
    assert isinstance(message, InputMessage)
    assert message.task == task(5, TaskKind.FORWARD, 1) and list(message.upcoming) == upcoming
    for found, sent in zip(message.tensors, TENSORS, strict=True):
        assert (found is None) == (sent is None)
        if sent is not None:
            assert bits(found) == bits(sent) and found.stride() == sent.stride()


def test_what_arrived_is_nobody_elses_memory(pair):
    """A receiver may write it; and who sent it has it unchanged."""
    one, other, _ = pair
    sent = torch.ones(4)
    one.send(1, inputs(5, 1, [sent]))
    (found,) = other.receive(SECONDS).tensors
    found.fill_(3.0)
    assert sent.tolist() == [1.0] * 4


def test_a_leaf_that_needs_a_gradient_is_still_one(pair):
    one, other, _ = pair
    sent = [torch.ones(2, requires_grad=True), torch.ones(2)]
    one.send(1, inputs(5, 1, sent))
    found = other.receive(SECONDS).tensors
    assert [tensor.requires_grad for tensor in found] == [True, False]
    assert all(tensor.is_leaf for tensor in found)


def test_messages_of_one_sender_keep_their_order_both_ways_and_to_itself(pair):
    one, other, _ = pair
    for y in range(50):
        one.send(1, inputs(y, 1, [torch.full((y + 1,), float(y))]))
        other.send(0, InputMessage(task(y, TaskKind.BACKWARD, 0), (), (None,)))
    for y in range(50):
        message = other.receive(SECONDS)
        assert message.task.sequence_id == y and message.tensors[0].tolist() == [float(y)] * (y + 1)
        assert one.receive(SECONDS).task.sequence_id == y
    one.send(0, inputs(9, 0, []))
    assert one.receive(SECONDS).task == task(9, TaskKind.FORWARD, 0)


def test_a_layer_is_handed_over_with_its_state_and_its_memory_is_free_when_it_is_gone(pair):
    one, other, _ = pair
    state = [
        ("param/weight", torch.randn(300, 300)), ("optimizer/weight/step", 4),
        ("optimizer/weight/momentum", torch.randn(300, 300)), ("buffer/mean", torch.zeros(2)),
    ]  # fmt: skip
    sending = one.send(1, VersionMessage(LAYER, 7, state))
    message = other.receive(SECONDS)
    assert isinstance(message, VersionMessage)
    assert (message.layer, message.version) == (LAYER, 7)
    assert [name for name, _ in message.state] == [name for name, _ in state]
    for (_, received), (_, sent) in zip(message.state, state, strict=True):
        if isinstance(sent, torch.Tensor):
            target = torch.empty_like(sent)
            received.copy_to(target)
            assert bits(target) == bits(sent)
        else:
            assert received.value() == sent
    tensors = [value.nbytes for _, value in state if isinstance(value, torch.Tensor)]
    assert sum(tensors) < sending.nbytes < sum(tensors) + 1000
    until(sending.is_over)


def test_a_layer_that_nobody_has_taken_is_still_needed(endpoints):
    """The other stage is not there yet: its tensors must not change. No ring has a copy."""
    endpoints = replace(endpoints, rings=None)
    with Wakeup() as wakeup, ZmqTransport(0, endpoints, wakeup) as one:
        sending = one.send(1, VersionMessage(LAYER, 7, [("param/w", torch.ones(1 << 18))]))
        assert not sending.is_over()
        with Wakeup() as later, ZmqTransport(1, endpoints, later) as other:
            assert other.receive(SECONDS).layer == LAYER
            until(sending.is_over)


def until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_contributions_arrive_with_every_bit(pair):
    one, other, _ = pair
    norms = {"0.2": 0.1 + 0.2, "1.0": 5e-324, "2.1": -0.0}
    one.send(1, ContributionMessage("norms", FIRST_STREAM, 4, 0, norms))
    found = other.receive(SECONDS)
    assert found[:4] == ("norms", FIRST_STREAM, 4, 0)
    assert {name: norm.hex() for name, norm in found.values.items()} == {
        name: norm.hex() for name, norm in norms.items()
    }


def test_what_the_launcher_says_arrives_beside_the_stages(pair, endpoints):
    one, other, _ = pair
    context = zmq.Context()
    try:
        outbox = connect_outbox(context, endpoints.workers[1], endpoints)
        outbox.send_multipart(launcher_frames(ControlMessage(HOLD)))
        one.send(1, ContributionMessage("norms", FIRST_STREAM, 4, 0, {}))
        found = [other.receive(SECONDS) for _ in range(2)]
    finally:
        context.destroy(linger=0)
    assert {type(message) for message in found} == {ControlMessage, ContributionMessage}


def test_looking_does_not_wait_and_a_wait_ends_in_time(pair):
    _, other, _ = pair
    start = time.monotonic()
    assert other.receive(0) is None
    assert time.monotonic() - start < 1.0
    assert other.receive(0.15) is None
    assert time.monotonic() - start >= 0.15


def test_a_wakeup_ends_a_wait_once(pair):
    _, other, wakeup = pair
    timer = threading.Timer(0.1, wakeup.set)
    start = time.monotonic()
    timer.start()
    assert other.receive(SECONDS) is None
    assert time.monotonic() - start < SECONDS / 2
    timer.join()
    assert other.receive(0.1) is None, "and the next wait waits again"
    assert time.monotonic() - start >= 0.2


@pytest.mark.parametrize("seconds", [20e-6, 0.0009, 0.0015, 0.004])
def test_short_waits_end_in_time_and_hear_what_came_meanwhile(pair, seconds):
    """Those for copies: polls count in milliseconds."""
    one, other, _ = pair
    waits = []
    for _ in range(9):
        start, left = time.monotonic(), seconds
        while left > 0:
            assert other.receive(left) is None
            left = start + seconds - time.monotonic()
        waits.append(time.monotonic() - start)
    assert seconds <= min(waits) < seconds + 0.0009
    one.send(1, inputs(7, 1, ()))
    found, deadline = None, time.monotonic() + SECONDS
    while found is None and time.monotonic() < deadline:
        found = other.receive(seconds)
    assert found.task.sequence_id == 7


def test_what_was_sent_last_leaves_although_the_sender_ends(endpoints):
    with Wakeup() as wakeup, ZmqTransport(1, endpoints, wakeup) as other:
        with Wakeup() as own, ZmqTransport(0, endpoints, own) as one:
            one.send(1, inputs(5, 1, [torch.ones(1 << 20)]))
        assert other.receive(SECONDS).tensors[0].sum() == 1 << 20


def test_frames_that_no_inbox_would_take_are_refused_before_they_leave(pair, monkeypatch):
    one, other, _ = pair
    monkeypatch.setattr(transport, "MAX_FRAME_BYTES", 4096)
    with pytest.raises(TransportError, match="worker 1: expected tensors of at most 4096 bytes"):
        one.send(1, inputs(5, 1, [torch.ones(2048)]))
    with pytest.raises(TransportError, match="found one of 8192; use smaller batches"):
        one.send(1, VersionMessage(LAYER, 7, [("param/w", torch.ones(2048))]))
    one.send(1, inputs(6, 1, [torch.ones(1000)]))
    assert other.receive(SECONDS).task.sequence_id == 6, "and nothing of the others came"


def test_an_announced_input_cannot_be_taken_here(pair):
    one, other, _ = pair
    one.announce(1, inputs(5, 1, [torch.ones(2)]))
    with pytest.raises(TransportError, match="by a way that is not open here"):
        other.receive(SECONDS)


def test_what_is_no_message_is_refused(pair, endpoints):
    _, other, _ = pair
    context = zmq.Context()
    try:
        outbox = connect_outbox(context, endpoints.workers[1], endpoints)
        outbox.send_multipart([b"\x93\xa5input", b""])
        with pytest.raises(TransportError, match="a message header cannot be read"):
            other.receive(SECONDS)
    finally:
        context.destroy(linger=0)


def test_an_address_where_nobody_can_listen_is_named(tmp_path):
    """A port that is taken; a directory that is not there. Nothing is left of the try."""
    taken = tcp_endpoints(free_ports(3), 2)
    nowhere = ipc_endpoints(tmp_path / "nowhere", 2)
    with Wakeup() as wakeup, ZmqTransport(0, taken, wakeup):
        before = threading.active_count()
        for endpoints in (taken, nowhere):
            with pytest.raises(TransportError, match=r"//.*: cannot listen there: "):
                ZmqTransport(0, endpoints, wakeup)
        assert threading.active_count() == before


def test_on_one_stage_only_the_launcher_is_heard():
    with Wakeup() as wakeup:
        mailbox = deque([ControlMessage(HOLD)])
        with NoTransport(mailbox, wakeup) as alone:
            assert alone.receive(SECONDS) == ControlMessage(HOLD)
            assert alone.receive(0) is None
            wakeup.set()
            assert alone.receive(SECONDS) is None and not wakeup.wait(0), "it was cleared"
            with pytest.raises(TransportError, match="worker 1: there is only one"):
                alone.send(1, inputs(0, 1, []))

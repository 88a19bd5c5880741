"""Large tensors through shared memory: every byte, in any sizes, and sockets where it is full."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import ExitStack

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.execution import Execution
from naspipe.config.ids import LayerId
from naspipe.engine.events import COPY, LAYER, TaskKind
from naspipe.wire import shared_rings
from naspipe.wire.endpoints import ipc_endpoints, make_endpoints
from naspipe.wire.messages import InputMessage, VersionMessage
from naspipe.wire.shared_rings import LEAST_BYTES, Ring, Rings, SharedFrames
from naspipe.wire.transport import Wakeup, ZmqTransport
from tests.oracle import bits
from tests.worker.tasks import task

SMALL = 4096 + 1024


def ends(size=SMALL):
    memory = memoryview(bytearray(size))
    return Ring(memory), Ring(memory)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(1, 700), st.integers(0, 4)), max_size=60))
def test_what_lies_there_is_what_was_put(steps):
    """Messages of any sizes; the receiver gives them back in order, some time later."""
    sender, receiver = ends()
    under_way, number = [], 0
    for nbytes, num_taken in steps:
        data = bytes([number % 251]) * nbytes
        position = sender.put(data)
        if position is not None:
            under_way.append((position, data))
            number += 1
        assert all(receiver.get(p, len(d)) == d for p, d in under_way), "overwritten"
        for _ in range(min(num_taken, len(under_way))):
            place, taken = under_way.pop(0)
            receiver.give_back(place, len(taken))
        if not under_way:
            assert sender.put(b"x" * 1024) is not None, "an empty ring takes what fits it"
            receiver.give_back(sender._head - 1024, 1024)


def test_a_full_ring_takes_nothing_more():
    sender, receiver = ends()
    assert sender.put(bytes(600)) == 0
    assert sender.put(bytes(600)) is None
    assert sender.put(bytes(2000)) is None, "more than its size"
    receiver.give_back(0, 600)
    assert sender.put(bytes(600)) == 1024, "at its beginning again"


def test_only_what_is_under_way_takes_memory():
    """Two messages under way for ever never go further into the ring than three would lie."""
    sender, receiver = ends(4096 + 64 * 1000)
    under_way, ends_at = [], set()
    for number in range(1000):
        nbytes = 640 if number % 3 else 1000
        position = sender.put(bytes(nbytes))
        ends_at.add(sender.place(position) + nbytes)
        under_way.append((position, nbytes))
        if len(under_way) > 2:
            receiver.give_back(*under_way.pop(0))
    assert max(ends_at) < 4 * 1024


def test_so_many_workers_that_no_room_is_left(monkeypatch):
    monkeypatch.setattr(shared_rings, "_TOTAL_BYTES", 256 << 20)
    assert Rings(600).between(0, 599).put(bytes(10)) is None


def test_a_ring_has_room_for_large_activations_on_four_stages():
    sender = Rings(4).between(0, 1)
    assert sender._size > 4 * 50_000_000
    assert [sender.reserve(50_000_000) is None for _ in range(3)] == [False] * 3


def test_a_copy_leaves_other_threads_go_on():
    """It would stop a stage's copies of layers, and whatever else its process does."""
    source, target = bytearray(200 << 20), bytearray(200 << 20)
    begun, over, counted = threading.Event(), threading.Event(), 0

    def copy():
        begun.wait()
        shared_rings.copy_bytes(target, source)
        over.set()

    usual = sys.getswitchinterval()
    sys.setswitchinterval(10.0)
    thread = threading.Thread(target=copy)
    thread.start()
    try:
        begun.set()
        while not over.wait(0.0005):
            counted += 1
    finally:
        sys.setswitchinterval(usual)
        thread.join()
    assert counted > 2


def test_who_has_rings(tmp_path):
    def has_rings(**execution):
        return make_endpoints(Execution(stages=2, **execution), tmp_path).rings is not None

    assert has_rings() and has_rings(data_path="cuda_ipc")
    assert not has_rings(data_path="zmq")
    assert not has_rings(transport="tcp"), "as between hosts"


def test_every_pair_has_a_way_of_its_own():
    rings = Rings(3)
    ways = [(a, b) for a in range(3) for b in range(3) if a != b]
    for number, way in enumerate(ways):
        rings.between(*way).put(bytes([number]) * 10)
    for number, way in enumerate(ways):
        assert rings.between(*way).get(0, 10) == bytes([number]) * 10


def test_another_process_sees_it():
    rings = Rings(2)
    child = os.fork()
    if child == 0:
        position = rings.between(1, 0).put(b"from the child")
        os._exit(0 if position == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert rings.between(1, 0).get(0, 14) == b"from the child"


def message(parcel, *sizes):
    state = [(f"param/{n}", torch.randn(size)) for n, size in enumerate(sizes)]
    return VersionMessage(LayerId(0, 1, 2), 3, state, parcel)


def test_messages_arrive_whole_also_when_the_ring_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_rings, "_MOST_BYTES", 6 * LEAST_BYTES)
    endpoints, large = ipc_endpoints(tmp_path, 2), LEAST_BYTES // 4
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(ZmqTransport(n, endpoints, stack.enter_context(Wakeup())))
            for n in range(2)
        )
        sent = [message(COPY, large, 10, 2 * large), message(LAYER, 3 * large, 5)] * 4
        sendings = [one.send(1, each) for each in sent]
        for each in sent:
            got = other.receive(5.0)
            assert got.parcel == each.parcel
            for (name, tensor), (found, received) in zip(each.state, got.state, strict=True):
                assert name == found and bits(received.value()) == bits(tensor)
        assert all(sending.nbytes > 3 * LEAST_BYTES for sending in sendings), "as without a ring"
        while not sendings[1].is_over():
            pass


def test_small_frames_take_the_socket():
    shared = SharedFrames(0, Rings(2))
    frames = [b"header", b"x" * (LEAST_BYTES - 1)]
    assert shared.pack(1, frames) == frames
    assert len(shared.pack(1, [b"header", b"x" * LEAST_BYTES])) == 3


def test_an_input_leaves_its_room_at_once(tmp_path, monkeypatch):
    """Tensors of more than half a ring, each sent when the one before has been received."""
    monkeypatch.setattr(shared_rings, "_MOST_BYTES", 128 << 20)
    endpoints = ipc_endpoints(tmp_path, 2)
    values = torch.rand(18_000_000)
    with ExitStack() as stack:
        wakeups = [stack.enter_context(Wakeup()) for _ in range(2)]
        one, two = (
            stack.enter_context(ZmqTransport(worker, endpoints, wakeup))
            for worker, wakeup in enumerate(wakeups)
        )
        ways = []
        usual = one._shared.pack
        one._shared.pack = lambda *given: ways.append(usual(*given)) or ways[-1]
        for number in range(3):
            one.send(1, InputMessage(task(number, TaskKind.FORWARD, 1), (), (values,)))
            assert bits(two.receive(20.0).tensors[0]) == bits(values)
        assert [len(frames[1]) for frames in ways] == [0, 0, 0], "all of them through the ring"

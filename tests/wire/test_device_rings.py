"""The way by memory that processes share on GPUs, on host memory in place of theirs."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

from naspipe.config.errors import TransportError
from naspipe.config.ids import WorkerId
from naspipe.machine import device_waits
from naspipe.machine.staging import HOST
from naspipe.wire import device_rings
from naspipe.wire.device_rings import DeviceRings, DeviceTransport
from naspipe.wire.endpoints import ipc_endpoints
from naspipe.wire.messages import (
    Announcement,
    InputMessage,
    Place,
    ReleaseMessage,
    announcement_frames,
    read_message,
    release_frames,
)
from naspipe.wire.shared_rings import Rings
from naspipe.wire.tensor_codec import describe
from naspipe.wire.transport import Wakeup, ZmqTransport
from tests.wire.all_to_all import STAGES, check, run, task, tensors
from tests.wire.host_memory import HostMemory

ONE, OTHER = WorkerId(0), WorkerId(1)


def open_transport(stage, endpoints, stack):
    inner = ZmqTransport(stage, endpoints, stack.enter_context(Wakeup()))
    rings = DeviceRings(stage, STAGES, endpoints.rings, HostMemory(None), HOST)
    return DeviceTransport(inner, rings, 60.0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("nbytes", [1 << 20, 1500, 64])
def test_every_stage_sends_to_every_other_at_once(tmp_path, monkeypatch, nbytes):
    """Also where a ring takes two messages, so that sockets take the others, or none at all."""
    monkeypatch.setattr(device_rings, "RING_BYTES", nbytes)
    run(tmp_path, open_transport)


class Late(HostMemory):
    """Copies are over when the test says so."""

    def __init__(self):
        super().__init__(None)
        self.marks = []

    def mark(self):
        mark = SimpleNamespace(is_over=False)
        mark.query = lambda: mark.is_over
        mark.synchronize = lambda: setattr(mark, "is_over", True)
        self.marks.append(mark)
        return mark


def ends(monkeypatch, nbytes, memory=HostMemory):
    monkeypatch.setattr(device_rings, "RING_BYTES", nbytes)
    rings = Rings(2)
    there = Late() if memory is Late else HostMemory(None)
    one, other = HostMemory(None), there
    return (
        DeviceRings(ONE, 2, rings, one, HOST),
        DeviceRings(OTHER, 2, rings, other, HOST),
        there,
    )


def announced(place, *sent):
    return Announcement(ONE, task(3, 1), (), tuple(map(describe, sent)), place=place)


def test_room_is_free_again_when_its_copy_is_over(monkeypatch):
    one, other, memory = ends(monkeypatch, 1024, Late)
    sent = torch.rand(128)
    places = [one.put(OTHER, [sent]) for _ in range(2)]
    assert one.put(OTHER, [sent]) is None, "it is full"
    assert [place.handle == b"" for place in places] == [False, True], "told once"
    for place in places:
        check(other.take(announced(place, sent)), [sent])
    assert one.put(OTHER, [sent]) is None, "its bytes are not copied yet"
    memory.marks[1].is_over = True
    other.give_back()
    assert one.put(OTHER, [sent]) is None, "those before it are not"
    memory.marks[0].is_over = True
    other.give_back()
    assert one.put(OTHER, [sent]) is not None


def test_who_ends_waits_for_its_last_copy(monkeypatch):
    one, other, _ = ends(monkeypatch, 1024, Late)
    sent = torch.rand(256)
    other.take(announced(one.put(OTHER, [sent]), sent))
    device_waits.begin()
    other.finish_reading()
    assert device_waits.per_block(1) == {"ring": 1.0}
    assert one.put(OTHER, [sent]) is not None


def test_a_sender_waits_until_its_bytes_lie_there(monkeypatch):
    _, other, memory = ends(monkeypatch, 1024, Late)
    device_waits.begin()
    other.put(ONE, [torch.rand(10), torch.rand(3)])
    other.put(ONE, [])
    assert device_waits.per_block(1) == {"ring": 1.0} and memory.marks[0].is_over


def test_a_gpu_without_room_for_a_ring_sends_through_host_memory(monkeypatch):
    one, _, _ = ends(monkeypatch, 1024)
    monkeypatch.setattr(HostMemory, "make", lambda memory, nbytes: None)
    assert one.put(OTHER, [torch.rand(2)]) is None


def test_an_input_that_the_gpu_has_no_room_for_comes_to_host_memory(monkeypatch):
    one, other, _ = ends(monkeypatch, 1024)
    sent, usual = torch.rand(10), torch.empty
    place = one.put(OTHER, [sent])

    def empty(*size, device=None, **rest):
        if device is not None:
            raise torch.OutOfMemoryError
        return usual(*size, **rest)

    monkeypatch.setattr(torch, "empty", empty)
    found = other.take(announced(place, sent))
    monkeypatch.undo()
    check(found, [sent])


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (Place(0), "not open here"),
        (Place(0, b"1:99999"), "has no such memory"),
        (None, "not open here"),
    ],
)
def test_places_in_no_ring(monkeypatch, place, message):
    _, other, _ = ends(monkeypatch, 1024)
    with pytest.raises(TransportError, match=message):
        other.take(announced(place, torch.rand(2)))


def test_a_place_behind_the_ring(monkeypatch):
    one, other, _ = ends(monkeypatch, 1024)
    place = one.put(OTHER, [torch.rand(2)])
    with pytest.raises(TransportError, match="end behind its ring"):
        other.take(announced(place._replace(position=1000), torch.rand(32)))


def test_places_and_releases_are_read_as_they_were_sent():
    sent = InputMessage(task(7, 1), (), tensors(0, 1, 0))
    for place in (None, Place(64, b"\x00\xff"), Place(1 << 40)):
        (header,) = announcement_frames(OTHER, sent, place)
        assert read_message(header, []).place == place
    (header,) = release_frames(OTHER)
    assert read_message(header, []) == ReleaseMessage(OTHER)


@pytest.mark.parametrize("place", [[-1, b""], [1.5, b""], [0, "text"], [0], 7, "ab"])
def test_a_place_that_is_none_is_refused(place):
    sent = InputMessage(task(7, 1), (), ())
    (header,) = announcement_frames(OTHER, sent, place)
    with pytest.raises(TransportError, match="cannot be read"):
        read_message(header, [])


def test_releases_are_for_stages_that_have_rings(tmp_path):
    endpoints = ipc_endpoints(tmp_path, 1)
    with Wakeup() as wakeup, ZmqTransport(ONE, endpoints, wakeup) as transport:
        transport.release(ONE)
        assert transport.receive(10.0) is None


def test_nobody_leaves_while_its_ring_is_read(tmp_path, monkeypatch):
    """The receiver says nothing for a while: the sender has to wait, but not for ever."""
    endpoints = ipc_endpoints(tmp_path, 2)
    with ExitStack() as stack:
        wakeups = [stack.enter_context(Wakeup()) for _ in range(2)]
        inner = stack.enter_context(ZmqTransport(OTHER, endpoints, wakeups[1]))
        made = []
        monkeypatch.setattr(HostMemory, "close", lambda memory: made.append("closed"))
        for patience, releases in ((0.2, False), (60.0, True)):
            transport = ZmqTransport(ONE, endpoints, wakeups[0])
            rings = DeviceRings(ONE, 2, endpoints.rings, HostMemory(None), HOST)
            with DeviceTransport(transport, rings, patience) as sender:
                sender.send(OTHER, InputMessage(task(1, 1), (), (torch.rand(3),)))
                assert isinstance(inner.receive_any(10.0), Announcement)
                if releases:
                    inner.release(ONE)
            assert isinstance(inner.receive_any(10.0), ReleaseMessage)
        assert made == ["closed", "closed"]

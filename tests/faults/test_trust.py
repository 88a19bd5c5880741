"""Strangers: files and messages with a payload in every place, and peers that are none."""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
import torch
import zmq
from torch import nn

import naspipe as npp
from naspipe.api.workers import started_by
from naspipe.config.errors import NaspipeError, TransportError
from naspipe.config.ids import StageId
from naspipe.engine.events import Task, TaskKind
from naspipe.launch.claim import end_processes
from naspipe.wire import transport
from naspipe.wire import transport as authenticator
from naspipe.wire.endpoints import tcp_endpoints
from naspipe.wire.messages import InputMessage, read_message
from naspipe.wire.transport import Wakeup, ZmqTransport, connect_outbox
from tests.cli.test_bad_input import free_ports
from tests.equivalence import spaces
from tests.faults.fuzz_targets import TARGETS

TASK = Task(0, 5, TaskKind.FORWARD, StageId(0))


class Canary:
    """Sings (makes a file) when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.fixture
def payloads(tmp_path):
    """A pickle, one in torch's file format; each sings when it is loaded."""
    marker = tmp_path / "sung"
    saved = tmp_path / "saved.pt"
    torch.save(Canary(marker), saved)
    found = [pickle.dumps(Canary(marker)), saved.read_bytes()]
    pickle.loads(found[0])  # noqa: S301
    assert marker.exists(), "it can sing"
    marker.unlink()
    yield found
    assert not marker.exists(), "nothing has executed it"


@pytest.mark.parametrize("name", TARGETS)
def test_no_reader_executes_a_payload(tmp_path, payloads, name):
    """In place of the whole file or message, in its middle, and as one of its texts."""
    target = TARGETS[name]
    for payload in payloads:
        refused = 0
        seeds = target.seeds(tmp_path)
        whole = [payload, json.dumps(payload.decode("latin-1")).encode()]
        for data in (*whole, *(s[: len(s) // 2] + payload + s[len(s) // 2 :] for s in seeds)):
            try:
                target.read(data, tmp_path)
            except target.errors:
                refused += 1
        assert refused >= len(whole)


def test_no_other_file_executes_a_payload(tmp_path, payloads):
    for payload in payloads:
        for name in (".processes.json", ".launch.json"):
            (tmp_path / name).write_bytes(payload)
        assert end_processes(tmp_path) == [] and started_by(tmp_path) == set()
        with pytest.raises(TransportError):
            read_message(payload, [payload])
        with pytest.raises(TransportError):
            read_message(b"\x93\xa5input\x91\x95\0\5\0\xa1F\0\x91\xc4\3abc", [payload])


@pytest.fixture
def inbox():
    """A stage's inbox over tcp; and the way of one of the run's peers to it."""
    endpoints = tcp_endpoints(free_ports(2), 1)
    with ExitStack() as stack:
        wakeup = stack.enter_context(Wakeup())
        stage = stack.enter_context(ZmqTransport(StageId(0), endpoints, wakeup))
        peer = stack.enter_context(ZmqTransport(StageId(0), _without_inbox(endpoints), wakeup))
        yield stage, peer, endpoints


def _without_inbox(endpoints):
    """The same run, seen from a process that listens elsewhere."""
    place = f"tcp://127.0.0.1:{free_ports(1)}"
    keys = {**endpoints.public_keys, place: endpoints.own_keys[0]}
    stages = (place, *endpoints.workers)
    return type(endpoints)(stages, endpoints.launcher, keys, endpoints.own_keys)


def assert_in_order(stage, peer):
    """What the peer sends arrives, and nothing else has."""
    task = TASK._replace(stage=StageId(1))
    peer.send(StageId(1), InputMessage(task, (), (torch.ones(3),)))
    message = stage.receive(10)
    assert isinstance(message, InputMessage) and message.tensors[0].tolist() == [1.0] * 3
    assert stage.receive(0.2) is None


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


GREETING = b"\xff" + bytes(8) + b"\x7f\3\1" + b"%s" + b"\0" + bytes(31)
HUGE = b"\x06" + struct.pack(">Q", 2 << 30)
STRANGERS = {
    "nothing": b"",
    "garbage": bytes(range(256)) * 256,
    "http": b"GET / HTTP/1.1\r\nHost: stage\r\n\r\n",
    "no encryption": GREETING.replace(b"%s", b"NULL".ljust(20, b"\0")) + b"\4\x05\5READY",
    "2 GiB": GREETING.replace(b"%s", b"CURVE".ljust(20, b"\0")) + HUGE + bytes(1 << 16),
    "2 GiB in its second frame": (
        GREETING.replace(b"%s", b"CURVE".ljust(20, b"\0")) + b"\4\3\2abcd" + HUGE + bytes(1 << 16)
    ),
}


def test_strangers_take_neither_memory_nor_part(inbox):
    """All of them at once, who stay; the run's own peer goes on as before."""
    stage, peer, endpoints = inbox
    port = int(endpoints.workers[0].rpartition(":")[2])
    before = resident_bytes()
    with ExitStack() as stack:
        for said in STRANGERS.values():
            stranger = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port))))
            with suppress(BrokenPipeError, ConnectionResetError):
                stranger.sendall(said)
        assert_in_order(stage, peer)
    assert resident_bytes() - before < 64 << 20


def stranger(context, endpoints):
    """Knows the address and the public key of a stage, as who reads the store does."""
    pair = zmq.curve_keypair()
    return connect_outbox(
        context,
        endpoints.workers[0],
        type(endpoints)(endpoints.workers, endpoints.launcher, endpoints.public_keys, pair),
    )


def heard_stranger(stage, endpoints):
    """Whether a message of somebody without a key of the run arrives."""
    context = zmq.Context()
    try:
        outbox = stranger(context, endpoints)
        outbox.send(b"\x93\xa7control\xa4hold\x90")
        return stage.receive(1) is not None
    finally:
        context.destroy(linger=0)


def test_the_public_keys_alone_open_no_door(inbox):
    stage, peer, endpoints = inbox
    assert not heard_stranger(stage, endpoints)
    assert_in_order(stage, peer)


def test_without_the_doorkeeper_they_would(monkeypatch):
    """The check above turns red when its rule is removed."""
    monkeypatch.setattr(authenticator.Authenticator, "__enter__", lambda self: self)
    endpoints = tcp_endpoints(free_ports(2), 1)
    with Wakeup() as wakeup, ZmqTransport(StageId(0), endpoints, wakeup) as stage:
        assert heard_stranger(stage, endpoints)


def test_a_frame_beyond_the_limit(monkeypatch):
    """The sender refuses to send one; where it does not, the receiver takes no memory for it."""
    monkeypatch.setattr(transport, "MAX_FRAME_BYTES", 1 << 20)
    endpoints = tcp_endpoints(free_ports(2), 1)
    with Wakeup() as wakeup, ZmqTransport(StageId(0), endpoints, wakeup) as stage:
        large = torch.zeros(1 << 20)
        with pytest.raises(TransportError, match=r"at most 1048576 bytes .* found one of 4194304"):
            stage.send(TASK.stage, InputMessage(TASK, (), (large,)))
        context = zmq.Context()
        outbox = connect_outbox(context, endpoints.workers[0], endpoints)
        outbox.send(bytes(1 << 22))
        assert stage.receive(1) is None
        context.destroy(linger=0)


def listeners(pids):
    """Addresses (as /proc has them) at which some processes listen."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pids[0]}/net/{name}").read_text().splitlines()[1:]
    ]
    return sorted(row[1] for row in rows if row[3] == "0A" and row[9] in inodes)


class Looks:
    """Data that looks, in a stage, at which addresses the run's processes listen."""

    record = {"name": "tests"}  # noqa: RUF012

    def __init__(self, found):
        self.found = found

    def __call__(self, seed, sequence_id):
        if sequence_id == 8 and not self.found.exists():
            launcher = Path(f"/proc/{os.getppid()}")
            children = (launcher / "task" / launcher.name / "children").read_text().split()
            self.found.write_text(json.dumps(listeners([launcher.name, *children])))
        return spaces.vectors(seed, sequence_id)


def test_a_run_on_one_machine_listens_on_loopback_only(tmp_path):
    found = tmp_path / "found"
    port = free_ports(3)
    npp.train(
        spaces.mixed(), Looks(found), nn.CrossEntropyLoss(), steps=12, stages=2, seed=1,
        run_dir=tmp_path / "run", execution={"transport": "tcp", "port": port},
    )  # fmt: skip
    addresses = json.loads(found.read_text())
    assert addresses == [f"0100007F:{number:04X}" for number in range(port, port + 3)]


def test_a_run_over_ipc_listens_nowhere(tmp_path):
    found = tmp_path / "found"
    npp.train(
        spaces.mixed(), Looks(found), nn.CrossEntropyLoss(), steps=12, stages=2, seed=1,
        run_dir=tmp_path / "run",
    )  # fmt: skip
    assert json.loads(found.read_text()) == []


def test_a_doorkeeper_leaves_nothing_behind():
    start = time.monotonic()
    for _ in range(3):
        context = zmq.Context()
        with authenticator.Authenticator(context, [zmq.curve_keypair()[0]]):
            pass
        context.destroy(linger=0)
    assert time.monotonic() - start < 5 and issubclass(TransportError, NaspipeError)

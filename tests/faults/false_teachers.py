"""A teacher that passes its admission check and is wrong afterwards, and a false student."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from contextlib import contextmanager

import msgpack
import torch
import zmq

import naspipe as npp
from naspipe.config.recipe import Recipe
from naspipe.distill.label_file import label_workload
from naspipe.distill.label_messages import (
    LabelAnswer,
    LabelRequest,
    No,
    Ready,
    student_frames,
    teacher_frames,
)
from naspipe.distill.label_network import LabelNetwork
from naspipe.distill.registry import open_registry
from naspipe.distill.teacher_card import TeacherCard, numeric_class, own_pair
from naspipe.distill.teacher_server import TeacherSeat, TeacherServer
from naspipe.engine.events import Task, TaskKind
from naspipe.wire.messages import InputMessage, stage_frames
from tests.distill.servers import free_port
from tests.equivalence.test_teachers import SEED, network
from tests.faults.other_teachers import SLOW

TASK = Task(0, 5, TaskKind.FORWARD, 1)


def garbage(message):
    return [b"\xc1\xff\x00 garbage"]


def oversized(message):
    return [msgpack.packb(["label", 0, "x" * 100_000]), b"\0" * 1_000_000]


def foreign(message):
    """What stages say to each other."""
    return stage_frames(InputMessage(TASK, (TASK,), (torch.ones(3, 2),)))


def more_frames(message):
    return [*teacher_frames(message), b"", b"more"]


def never_asked(message):
    return teacher_frames(LabelAnswer(message.number + 40, message.label))


def short(message):
    return teacher_frames(LabelAnswer(message.number, message.label[:1]))


def other_classes(message):
    return teacher_frames(LabelAnswer(message.number, message.label[:, :9].contiguous()))


def other_numbers(message):
    return teacher_frames(LabelAnswer(message.number, message.label.double()))


def with_a_gradient(message):
    label = message.label.clone().requires_grad_()
    return teacher_frames(LabelAnswer(message.number, label))


def without_end(message):
    """More of the label than can be in any memory, in four bytes."""
    entry = ["float32", [1 << 31, 10], [0, 0], 0, False]
    return [msgpack.packb(["label", message.number, entry]), b"\0" * 4]


def another_greeting(message):
    return teacher_frames(Ready("another class"))


def not_a_number(message):
    return teacher_frames(LabelAnswer(message.number, message.label * torch.nan))


class FalseServer(TeacherServer):
    """Its labels are right until ``since``; then a twist makes its frames."""

    twist = staticmethod(garbage)
    since = 1
    times = 1

    def _send(self, socket, student, message):
        if isinstance(message, LabelAnswer) and self.num_answered > self.since:
            for _ in range(self.times):
                socket.send_multipart([student, *self.twist(message)])
        elif not isinstance(message, No):
            super()._send(socket, student, message)


@contextmanager
def false_teacher(tmp_path, registry, twist, since=1, times=1, name="false"):
    """Its key is known to the run."""
    public, secret = own_pair(tmp_path / f"{name}.key")
    with (tmp_path / "known").open("a") as file:
        file.write(f"{public} {name}\n")
    address = f"tcp://127.0.0.1:{free_port()}"
    teacher = npp.Teacher(network())
    card = TeacherCard(name, address, public, teacher.digest, numeric_class("cpu", 1))

    def serve():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        seat = TeacherSeat(
            card=card, secret_key=secret, registry=open_registry(registry), ttl_seconds=0.8
        )
        made = LabelNetwork.of(label_workload(teacher, SLOW, SEED, Recipe()))
        server = FalseServer(seat, lambda wanted: made)
        server.twist, server.since, server.times = twist, since, times
        server.run()
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=serve)
    process.start()
    try:
        yield card
    finally:
        process.kill()
        process.join()


class FalseStudent(threading.Thread):
    """Sends a teacher what no student says, until it is ended."""

    def __init__(self, card):
        super().__init__(daemon=True)
        self._card, self._is_over = card, threading.Event()
        self.answers = 0

    def run(self):
        said = [
            [b"\xc1 garbage"], [b""], [b"\x93" * 70_000], [b"a", b"b", b"c"],
            foreign(None), [msgpack.packb(["hello", 1, {"seed": 1, "data": {"a": []}}])],
            [msgpack.packb(["hello", 1, {1: 2, "a": 3}])], [msgpack.packb(["hello", 9, {}])],
            student_frames(LabelRequest(3)), student_frames(LabelRequest(3, (torch.ones(2),))),
            [msgpack.packb(["ask", -1])], [msgpack.packb(["ask", 2**63])],
            [msgpack.packb(["ask", True])],
        ]  # fmt: skip
        host, port = self._card.address.removeprefix("tcp://").split(":")
        with zmq.Context() as context, context.socket(zmq.DEALER) as line:
            line.linger = 0
            line.curve_serverkey = self._card.public_key.encode()
            line.curve_publickey, line.curve_secretkey = zmq.curve_keypair()
            line.connect(self._card.address)
            while not self._is_over.is_set():
                with socket.create_connection((host, int(port)), 5) as raw:
                    raw.sendall(os.urandom(200))
                for frames in said:
                    line.send_multipart(frames)
                while line.poll(20):
                    line.recv_multipart()
                    self.answers += 1

    def end(self):
        self._is_over.set()
        self.join(30)

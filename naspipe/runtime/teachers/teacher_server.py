"""A teacher's process: computes the labels that students ask for, one batch at a time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from naspipe.config.errors import NaspipeError, TransportError
from naspipe.runtime.labels.label_messages import (
    Hello,
    LabelAnswer,
    LabelRequest,
    No,
    Ready,
    Stranger,
    TeacherMessage,
    read_student,
    teacher_frames,
)
from naspipe.runtime.labels.label_network import LabelNetwork
from naspipe.runtime.registries.ports import Registry
from naspipe.runtime.registries.registry_watch import BEATS
from naspipe.runtime.registries.teacher_card import TeacherCard

_MAX_FRAME_BYTES = 1 << 30
_POLL_MS = 500
_MAX_STUDENTS = 256
_MAX_WAITING = 256
"""Requests of one student that wait, and messages that are taken before the next label is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherSeat:
    """How a teacher is reached, and how it shows itself."""

    card: TeacherCard
    secret_key: bytes = b""
    """CURVE key of its socket; empty in a private directory."""
    registry: Registry
    ttl_seconds: float
    pace_seconds: float = 0.0
    """It answers no sooner: for measurements."""


class TeacherServer:
    """Answers students until it is told to end.

    Args:
        seat: how it is reached.
        open_network: makes the network for what a student wants: its key, see
            :func:`naspipe.runtime.labels.label_file.label_key`.
        say: takes a line for whoever watches it.
        is_over: set when it is to end; also from a signal.

    Raises:
        TransportError: when it cannot listen.
    """

    def __init__(
        self,
        seat: TeacherSeat,
        open_network: Callable[[Mapping[str, Any]], LabelNetwork],
        say: Callable[[str], None] = lambda text: None,
        is_over: threading.Event | None = None,
    ) -> None:
        self._seat, self._open, self._say = seat, open_network, say
        self._students: dict[bytes, LabelNetwork] = {}
        self._asked: deque[tuple[bytes, LabelRequest]] = deque()
        self._is_over = is_over or threading.Event()
        self.num_answered = 0

    def run(self) -> None:
        """Serve, to the end of the batch in which it is told to end; shows its card until then."""
        context: zmq.Context[Any] = zmq.Context()
        beating = threading.Thread(target=self._beat, name="naspipe-beat", daemon=True)
        try:
            with _listen(context, self._seat) as socket:
                beating.start()
                while not self._is_over.is_set():
                    self._receive(socket, 0 if self._asked else _POLL_MS)
                    if self._asked:
                        student, request = self._asked.popleft()
                        self._send(socket, student, self._answer(student, request))
        finally:
            self._is_over.set()
            if beating.is_alive():
                beating.join()
            context.destroy(linger=1000)

    def _receive(self, socket: zmq.Socket[Any], wait_ms: int) -> None:
        """Take everything that has come; what cannot be read is answered so."""
        for _ in range(_MAX_WAITING):
            if not socket.poll(wait_ms) or self._is_over.is_set():
                break
            wait_ms = 0
            student, *frames = socket.recv_multipart()
            try:
                message = read_student(frames)
            except TransportError as error:
                self._send(socket, student, No(str(error)))
                continue
            if isinstance(message, LabelRequest):
                self._take(socket, student, message)
            else:
                self._send(socket, student, self._greet(student, message))

    def _take(self, socket: zmq.Socket[Any], student: bytes, request: LabelRequest) -> None:
        if sum(each == student for each, _ in self._asked) < _MAX_WAITING:
            self._asked.append((student, request))
        else:
            self._send(socket, student, No("expected fewer requests at a time", request.number))

    def _greet(self, student: bytes, hello: Hello) -> Ready | No:
        try:
            network = self._open(hello.key)
        except Exception as error:  # anybody may greet, with any key
            kind = "" if isinstance(error, NaspipeError) else f"{type(error).__name__}: "
            why = " ".join(f"{kind}{error}".split())
            self._say(f"a student is refused: {why:.400}")
            return No(why)
        while len(self._students) >= _MAX_STUDENTS:  # the oldest has most likely gone
            del self._students[next(iter(self._students))]
        self._students[student] = network
        return Ready(self._seat.card.numeric_class)

    def _answer(self, student: bytes, request: LabelRequest) -> LabelAnswer | No | Stranger:
        network, number = self._students.get(student), request.number
        if network is None:
            return Stranger()
        self._students[student] = self._students.pop(student)  # the newest now
        begin = time.monotonic()
        try:
            if request.fields:
                label = network.label_of(number, network.split(request.fields))
            else:
                label = network.label(number)
        except Exception as error:  # another teacher may do better
            if isinstance(error, TransportError):  # a part of this one is gone
                self._is_over.set()
            return No(f"{type(error).__name__}: {error}", number)
        left = begin + self._seat.pace_seconds - time.monotonic()
        if left > 0:
            self._is_over.wait(left)
        self.num_answered += 1
        return LabelAnswer(number, label.cpu())

    def _send(self, socket: zmq.Socket[Any], student: bytes, message: TeacherMessage) -> None:
        frames: Sequence[Any] = teacher_frames(message)
        socket.send_multipart([student, *frames], copy=True)

    def _beat(self) -> None:
        """Show the card again and again; a registry that is down for a while is no matter."""
        seat = self._seat
        is_shown = True
        while True:
            try:
                seat.registry.announce(seat.card, seat.ttl_seconds)
                is_shown = True
            except TransportError as error:
                if is_shown:
                    self._say(f"{error}; trying again")
                is_shown = False
            if self._is_over.wait(seat.ttl_seconds / BEATS):
                break
        try:
            seat.registry.withdraw(seat.card.name)
        except TransportError:
            return  # the card expires by itself


def _listen(context: zmq.Context[Any], seat: TeacherSeat) -> zmq.Socket[Any]:
    socket: zmq.Socket[Any] = context.socket(zmq.ROUTER)
    socket.linger = 1000
    socket.set_hwm(_MAX_WAITING)  # who sends without end, or never reads, has no more memory
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
    if seat.secret_key:
        socket.curve_server = True
        socket.curve_publickey = seat.card.public_key.encode("ascii")
        socket.curve_secretkey = seat.secret_key
    try:
        socket.bind(seat.card.address)
    except zmq.ZMQError as error:
        socket.close(0)
        raise TransportError(f"{seat.card.address}: cannot listen there: {error}") from error
    return socket


def check_wanted(own: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """A student must want the labels that a teacher makes.

    Args:
        own: the teacher's key.
        wanted: the student's.

    Raises:
        TransportError: naming what differs.
    """
    for name, value in own.items():
        if wanted.get(name) != value:
            raise TransportError(
                f"expected a student of {name} {value!s:.80}, found {wanted.get(name)!s:.80}"
            )

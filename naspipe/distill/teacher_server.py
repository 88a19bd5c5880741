"""A teacher's process, which computes the labels that students ask for, one batch at a time.

If a teacher is too large for one device, its blocks are divided among several processes
(:class:`StagedBlocks`).
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from multiprocessing.connection import Connection
from typing import Any, Self

import msgpack
import torch
import zmq

from naspipe.config.errors import ConfigError, NaspipeError, TransportError
from naspipe.distill.label_messages import (
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
from naspipe.distill.label_network import LabelNetwork, run_block
from naspipe.distill.registry import BEATS, Registry
from naspipe.distill.teacher_card import TeacherCard
from naspipe.jobs.workload import Workload
from naspipe.machine.determinism import deterministic_torch
from naspipe.machine.forking import FORK, end_all, in_own_thread, kept_heap, quiet_fork
from naspipe.plan.partitions import balanced_partition
from naspipe.wire.tensor_codec import decode, encode
from naspipe.worker.blocks.specs import Tensors

_MAX_FRAME_BYTES = 1 << 30
_POLL_MS = 500
_MAX_STUDENTS = 256
_MAX_WAITING = 256
"""Waiting requests of one student, and messages that are read before the next label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherSeat:
    """How a teacher is reached and announced."""

    card: TeacherCard
    secret_key: bytes = b""
    """CURVE key of its socket; empty in a private directory."""
    registry: Registry
    ttl_seconds: float
    pace_seconds: float = 0.0
    """Minimum time of an answer, for measurements."""


class TeacherServer:
    """Answers students until ``is_over`` is set.

    Args:
        seat: how the teacher is reached.
        open_network: returns the network for the key of a student, see
            :func:`naspipe.distill.label_file.label_key`.
        say: called with each line for the user.
        is_over: may be set by a signal handler.
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
        """Serve, and publish the card, until the end of the batch during which ``is_over`` is set.

        Raises:
            TransportError: if it cannot listen.
        """
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
        """Read all messages that have arrived, and refuse invalid ones."""
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
            if isinstance(message, Hello):
                self._send(socket, student, self._greet(student, message))
            elif sum(each == student for each, _ in self._asked) < _MAX_WAITING:
                self._asked.append((student, message))
            else:
                self._send(socket, student, No("expected fewer requests at a time", message.number))

    def _greet(self, student: bytes, hello: Hello) -> Ready | No:
        try:
            network = self._open(hello.key)
        except Exception as error:  # anybody may send a greeting, with any key
            kind = "" if isinstance(error, NaspipeError) else f"{type(error).__name__}: "
            why = " ".join(f"{kind}{error}".split())
            self._say(f"a student is refused: {why:.400}")
            return No(why)
        while len(self._students) >= _MAX_STUDENTS:  # the oldest one has probably ended
            del self._students[next(iter(self._students))]
        self._students[student] = network
        return Ready(self._seat.card.numeric_class)

    def _answer(self, student: bytes, request: LabelRequest) -> LabelAnswer | No | Stranger:
        network, number = self._students.get(student), request.number
        if network is None:
            return Stranger()
        self._students[student] = self._students.pop(student)  # becomes the newest
        begin = time.monotonic()
        try:
            if request.fields:
                label = network.label_of(number, network.split(request.fields))
            else:
                label = network.label(number)
        except Exception as error:  # another teacher may succeed
            if isinstance(error, TransportError):  # a process of this teacher has ended
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
        """Announce the card repeatedly, even while the registry is down."""
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
            return  # the card expires


def _listen(context: zmq.Context[Any], seat: TeacherSeat) -> zmq.Socket[Any]:
    socket: zmq.Socket[Any] = context.socket(zmq.ROUTER)
    socket.linger = 1000
    socket.set_hwm(_MAX_WAITING)  # bounds the memory for a student that never reads
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
    """Compare a teacher's key with that of a student.

    Raises:
        TransportError: naming what differs.
    """
    for name, value in own.items():
        if wanted.get(name) != value:
            raise TransportError(
                f"expected a student of {name} {value!s:.80}, found {wanted.get(name)!s:.80}"
            )


def end_with_parent(read_end: int) -> None:
    """End this process when its parent, which alone holds the other end, ends; runs in a thread."""
    os.read(read_end, 1)
    os._exit(0)


_TIMEOUT_SECONDS = 300.0


class StagedBlocks:
    """A :data:`naspipe.distill.label_network.Forward` over processes; a context manager.

    The processes, one per device, are forked from this one, which must not have started CUDA. A
    batch passes through them one after the other, with its strides and alignment, so that the
    result is bitwise equal to that of one process.
    """

    def __init__(self, teacher: Workload, devices: Sequence[str]) -> None:
        sizes = []
        for block in teacher.space.blocks:  # only one block at a time is in memory
            tensors = block.candidates[0]().state_dict().values()
            sizes.append(1 + sum(each.nbytes for each in tensors))
        bounds = balanced_partition(sizes, len(devices)).bounds
        self._stages: list[tuple[range, Connection]] = []
        self._processes: list[Any] = []
        self._stack = ExitStack()
        read_end, write_end = os.pipe()
        self._stack.callback(os.close, write_end)
        self._stack.callback(end_all, self._processes)
        for (first, end), device in zip(pairwise(bounds), devices, strict=True):
            own, theirs = FORK.Pipe()
            self._stack.callback(own.close)
            process = FORK.Process(
                target=_stage_main,
                args=(teacher, range(first, end), device, theirs, (read_end, write_end)),
                name=f"naspipe-teacher-blocks-{first}",
            )
            with quiet_fork():
                process.start()
            theirs.close()
            self._processes.append(process)
            self._stages.append((range(first, end), own))
        os.close(read_end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def __call__(self, teacher: Workload, number: int, fields: list[Tensors]) -> Tensors:
        """Compute the output of the last block.

        Raises:
            ConfigError: if a block has failed.
            TransportError: if a process has ended or does not answer; no further label can be
                computed.
        """
        state: Tensors = ()
        for blocks, connection in self._stages:
            taken = list(chain.from_iterable(fields[block] for block in blocks))
            counts = [len(fields[block]) for block in blocks]
            try:
                header = [number, len(state), counts, teacher.recipe.precision]
                _send(connection, header, (*state, *taken))
                if not connection.poll(_TIMEOUT_SECONDS):
                    raise EOFError(f"no answer within {_TIMEOUT_SECONDS:g} s")
                problem, state = _receive(connection)
            except (EOFError, OSError) as error:
                raise TransportError(
                    f"teacher: expected blocks {blocks.start} to {blocks.stop - 1} in a process of "
                    f"their own, found that it has ended: {error}"
                ) from error
            if problem:
                raise ConfigError(f"teacher: blocks {blocks.start} to {blocks.stop - 1}: {problem}")
        return state


def staged_network(teacher: Workload, devices: Sequence[str], stack: ExitStack) -> LabelNetwork:
    """Create a teacher on one device in this process, or on several, with a process for each.

    ``stack`` ends the processes.
    """
    if len(devices) == 1:
        return LabelNetwork.of(teacher, devices[0])
    blocks = stack.enter_context(StagedBlocks(teacher, devices))
    return LabelNetwork(workload=teacher, forward=blocks, device=torch.device("cpu"))


def stage_devices(device: str, count: int) -> list[str]:
    """Return a device for each process: GPUs from 0 on for ``cuda``, otherwise the same device."""
    return [f"cuda:{number}" for number in range(count)] if device == "cuda" else [device] * count


def _stage_main(
    teacher: Workload,
    blocks: range,
    device: str,
    connection: Connection,
    parent_pipe: tuple[int, int],
) -> None:
    read_end, write_end = parent_pipe
    os.close(write_end)
    threading.Thread(target=end_with_parent, args=(read_end,), daemon=True).start()
    threads = teacher.recipe.threads
    in_own_thread(threads, lambda: _run(teacher, blocks, device, connection))


def _run(teacher: Workload, blocks: range, device: str, connection: Connection) -> None:
    where = torch.device(device)
    with deterministic_torch(teacher.recipe.threads), kept_heap():
        modules = [teacher.space.blocks[each].candidates[0]().eval().to(where) for each in blocks]
        while True:
            try:
                (number, size, counts, precision), tensors = _receive(connection)
            except EOFError:
                return
            if precision != teacher.recipe.precision:
                teacher = teacher.redefined(recipe=replace(teacher.recipe, precision=precision))
            rest = [each.to(where) for each in tensors]
            state, rest = tuple(rest[:size]), rest[size:]
            try:
                for block, module, count in zip(blocks, modules, counts, strict=True):
                    own, rest = tuple(rest[:count]), rest[count:]
                    state = run_block(teacher, block, module, number, own, state)
                _send(connection, "", tuple(each.cpu() for each in state))
            except Exception as error:  # reported to the caller
                problem = traceback.format_exception_only(error)[-1].strip()
                _send(connection, problem or "an error", ())


def _send(connection: Connection, header: Any, tensors: Tensors) -> None:
    encoded = [encode(each) for each in tensors]
    connection.send_bytes(msgpack.packb([header, [entry for entry, _ in encoded]]))
    for _, raw in encoded:
        connection.send_bytes(raw)


def _receive(connection: Connection) -> tuple[Any, Tensors]:
    header, entries = msgpack.unpackb(connection.recv_bytes())
    found = (decode(entry, connection.recv_bytes()) for entry in entries)
    return header, tuple(each for each in found if each is not None)

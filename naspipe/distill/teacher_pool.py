"""A run's own registry and teachers: a single process owns both and ends with the run."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Self

import msgpack
import zmq

from naspipe.config.errors import ConfigError, TransportError
from naspipe.config.execution import Execution
from naspipe.distill.label_file import label_key
from naspipe.distill.label_network import LabelNetwork
from naspipe.distill.registry import (
    ANNOUNCE,
    CARDS,
    HIRE,
    MAX_CARDS,
    RELEASE,
    WITHDRAW,
    OwnRegistry,
)
from naspipe.distill.teacher_card import MAX_CARD_BYTES, TeacherCard, numeric_class, read_card
from naspipe.distill.teacher_server import (
    TeacherSeat,
    TeacherServer,
    check_wanted,
    end_with_parent,
    stage_devices,
    staged_network,
)
from naspipe.jobs.workload import Workload
from naspipe.machine.determinism import deterministic_torch
from naspipe.machine.forking import (
    FORK,
    end_all,
    in_own_thread,
    kept_heap,
    leave_signals_to_launcher,
    quiet_fork,
)
from naspipe.wire.endpoints import private_directory

_MAX_TTL_SECONDS = 86_400.0
_MOST_AT_ONCE = 256
_WAIT_MS = 200
_START_SECONDS = 30.0
_MOST_FAILED = 3
"""After this many teachers have ended with an error, no more are started."""


class _Shown(NamedTuple):
    card: bytes
    until: float
    is_own: bool


class CardTable:
    """Cards by name, each kept until its time has expired; answers requests to a registry.

    Args:
        clock: seconds of a monotonic clock.
        hire: called with the number of further teachers that are needed.
        release: called with the name of a teacher that is not needed.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        hire: Callable[[int], None] = lambda count: None,
        release: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._clock, self._hire, self._release = clock, hire, release
        self._cards: dict[str, _Shown] = {}

    def answer(self, data: bytes, is_own: bool = True) -> Any:
        """Return the answer to a request; None if it is invalid or not allowed.

        Only processes of the run (``is_own``) may hire and release teachers, and change the cards
        of the run's own teachers.
        """
        try:
            return self._answer(msgpack.unpackb(data), is_own)
        except (TypeError, ValueError, TransportError, msgpack.UnpackException, RecursionError):
            return None

    def _answer(self, words: Any, is_own: bool) -> Any:
        now = self._clock()
        self._cards = {name: each for name, each in self._cards.items() if each.until > now}
        match words:
            case [kind, bytes(card), int(ttl) | float(ttl)] if kind == ANNOUNCE:
                name = read_card(card).name
                if not 0 < ttl <= _MAX_TTL_SECONDS:
                    raise ValueError(f"a time of {ttl} seconds")
                self._check(name, is_own)
                if is_own or name in self._cards or len(self._cards) < MAX_CARDS:
                    self._cards[name] = _Shown(card, now + ttl, is_own)
            case [kind, str(name)] if kind == WITHDRAW:
                self._check(name, is_own)
                self._cards.pop(name, None)
            case [kind] if kind == CARDS:
                return [each.card for each in self._cards.values()]
            case [kind, int(count)] if kind == HIRE and is_own:
                self._hire(count)
            case [kind, str(name)] if kind == RELEASE and is_own:
                self._release(name)
            case _:
                raise ValueError("unknown words")
        return []

    def _check(self, name: str, is_own: bool) -> None:
        shown = self._cards.get(name)
        if shown is not None and shown.is_own and not is_own:
            raise ValueError(f"{name:.80} is a teacher of the run")


def listen(context: zmq.Context[Any], address: str) -> zmq.Socket[Any]:
    """Open the socket of a registry at ``ipc://`` or ``tcp://``; anybody may send requests to it.

    Raises:
        TransportError: if it cannot listen there.
    """
    socket: zmq.Socket[Any] = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.setsockopt(zmq.MAXMSGSIZE, 4 * MAX_CARD_BYTES)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close(0)
        raise TransportError(f"{address}: cannot listen there: {error}") from error
    return socket


def serve(sockets: Mapping[zmq.Socket[Any], bool], table: CardTable, wait_ms: int) -> None:
    """Answer requests that have arrived or arrive within ``wait_ms``.

    ``sockets`` maps each socket to True if only processes of the run can reach it.
    """
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    for socket, _ in poller.poll(wait_ms):
        for _ in range(_MOST_AT_ONCE):
            if not socket.poll(0):
                break
            frames = socket.recv_multipart()
            if len(frames) == 3 and not frames[1]:  # a REQ socket: identity, empty frame, request
                answer = msgpack.packb(table.answer(frames[2], sockets[socket]))
                socket.send_multipart([frames[0], b"", answer])


@dataclass(slots=True)
class TeacherPool:
    """The run's own teachers; a context manager.

    No process remains when the context or this process ends.
    """

    teacher: Workload
    execution: Execution
    """Execution of the run; determines the number of teachers and their device."""
    listens_at: str
    """Address at which others find its registry, ``tcp://ADDRESS:PORT``; empty for none."""
    directory: str = ""
    """Private directory that contains the sockets."""
    _folder: ExitStack = field(default_factory=ExitStack)
    _process: BaseProcess | None = None
    _parent_pipe: tuple[int, int] = field(default=(-1, -1))
    """Only this process holds the write end, so that the pool notices the end of the run."""

    @property
    def private(self) -> str:
        """Prefix of the addresses of its teachers."""
        return f"ipc://{self.directory or '/nowhere'}/"

    @property
    def registry_address(self) -> str:
        return f"ipc://{self.directory}/registry"

    def __enter__(self) -> Self:
        self.directory = str(self._folder.enter_context(private_directory()))
        self._parent_pipe = os.pipe()
        receiver, sender = FORK.Pipe(duplex=False)
        with quiet_fork():
            self._process = FORK.Process(
                target=_pool_main, args=(self, sender), name="naspipe-teachers", daemon=False
            )
            self._process.start()
        sender.close()
        os.close(self._parent_pipe[0])
        try:
            with receiver:
                problem = receiver.recv_bytes() if receiver.poll(_START_SECONDS) else b"no answer"
        except EOFError:
            problem = b"its end"
        if problem:
            self.__exit__()
            found = problem.decode("utf-8", "replace")
            raise ConfigError(f"teachers: expected the run's own registry to start, found {found}")
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._parent_pipe[1])
        if self._process is not None:
            self._process.join(10)
            end_all([self._process])
        self._folder.close()


def _pool_main(pool: TeacherPool, sender: Any) -> None:
    """Serve the registry, and watch over the teachers that were started or hired."""
    leave_signals_to_launcher()
    read_end, write_end = pool._parent_pipe
    os.close(write_end)
    teachers = _Teachers(pool)
    is_over = threading.Event()

    def wait_for_end() -> None:
        os.read(read_end, 1)
        is_over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    context: zmq.Context[Any] = zmq.Context()
    table = CardTable(hire=teachers.hire, release=teachers.release)
    try:
        addresses = [pool.registry_address, *filter(None, [pool.listens_at])]
        try:
            sockets = {
                listen(context, address): address == pool.registry_address for address in addresses
            }
        except TransportError as error:
            sender.send_bytes(str(error).encode())
            return
        sender.send_bytes(b"")
        sender.close()
        teachers.start(pool.execution.teaching.teachers)
        while not is_over.is_set():
            serve(sockets, table, _WAIT_MS)
    finally:
        teachers.end()
        context.destroy(linger=0)
        shutil.rmtree(pool.directory, ignore_errors=True)  # its owner may have been killed


class _Teachers:
    """The processes of the teachers, by name."""

    def __init__(self, pool: TeacherPool) -> None:
        self._pool = pool
        self._parent_pipe = os.pipe()
        self._processes: dict[str, BaseProcess] = {}
        self._number = 0

    def start(self, count: int) -> None:
        for _ in range(count):
            name = f"teacher-{self._number}"
            self._number += 1
            process = FORK.Process(
                target=_teacher_main,
                args=(self._pool, name, self._parent_pipe),
                name=f"naspipe-{name}",
            )
            with quiet_fork():
                process.start()
            self._processes[name] = process

    def hire(self, count: int) -> None:
        """Start teachers as far as the settings allow; start none if too many have failed."""
        failed = sum((process.exitcode or 0) > 0 for process in self._processes.values())
        if failed >= _MOST_FAILED:
            return
        alive = sum(process.is_alive() for process in self._processes.values())
        way = self._pool.execution.teaching
        self.start(max(0, min(count, (way.teachers_most or way.teachers) - alive)))

    def release(self, name: str) -> None:
        process = self._processes.get(name)
        if process is not None and process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGTERM)

    def end(self) -> None:
        end_all(list(self._processes.values()))


def _teacher_main(pool: TeacherPool, name: str, parent_pipe: tuple[int, int]) -> None:
    read_end, write_end = parent_pipe
    os.close(write_end)
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: is_over.set())
    threading.Thread(target=end_with_parent, args=(read_end,), daemon=True).start()
    threads = pool.teacher.recipe.threads
    in_own_thread(threads, lambda: _serve_labels(pool, name, is_over))


def _serve_labels(pool: TeacherPool, name: str, is_over: threading.Event) -> None:
    device, way = pool.execution.hardware.device, pool.execution.teaching
    threads = pool.teacher.recipe.threads
    with ExitStack() as stack:
        stack.enter_context(deterministic_torch(threads))
        stack.enter_context(kept_heap())
        network = staged_network(pool.teacher, stage_devices(device, way.teacher_stages), stack)
        own = label_key(pool.teacher.definition)

        def open_network(wanted: Mapping[str, Any]) -> LabelNetwork:
            check_wanted(own, wanted)
            return network

        card = TeacherCard(
            name=name,
            address=f"ipc://{pool.directory}/{name}",
            public_key="",
            digest=pool.teacher.definition.teacher,
            numeric_class=numeric_class(device, threads),
        )
        seat = TeacherSeat(
            card=card,
            registry=OwnRegistry(pool.registry_address),
            ttl_seconds=way.ttl_seconds,
            pace_seconds=way.pace_seconds,
        )
        TeacherServer(seat, open_network, is_over=is_over).run()

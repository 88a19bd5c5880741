"""A run's own registry and its own teachers: one process that keeps both, and ends with the run."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self

import zmq

from naspipe.config.errors import ConfigError, TransportError
from naspipe.runtime.devices.determinism import deterministic_torch
from naspipe.runtime.forking.fork import (
    FORK,
    end_all,
    leave_signals_to_launcher,
    quiet_fork,
)
from naspipe.runtime.forking.own_thread import in_own_thread
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.labels.label_file import label_key
from naspipe.runtime.labels.label_network import LabelNetwork
from naspipe.runtime.memory.heap import kept_heap
from naspipe.runtime.registries.own_registry import OwnRegistry
from naspipe.runtime.registries.teacher_card import TeacherCard, numeric_class
from naspipe.runtime.teachers.lifeline import end_with_parent
from naspipe.runtime.teachers.registry_server import CardTable, listen, serve
from naspipe.runtime.teachers.staged_blocks import stage_devices, staged_network
from naspipe.runtime.teachers.teacher_server import TeacherSeat, TeacherServer, check_wanted
from naspipe.runtime.wire.private_directories import private_directory

_WAIT_MS = 200
_START_SECONDS = 30.0
_MOST_FAILED = 3
"""Teachers that end with an error of their own: the next one would, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How many teachers a run has of its own, and how they are."""

    workload: Workload
    """Of the teacher."""
    device: str
    count: int
    most: int
    """That may be hired."""
    ttl_seconds: float
    pace_seconds: float
    stages: int = 1
    """Processes of each teacher."""
    listens_at: str = ""
    """Where others find its registry, ``tcp://ADDRESS:PORT``; empty for nowhere."""


@dataclass(slots=True)
class TeacherPool:
    """Processes beside the stages; a context manager. None is left when it ends, or this process.

    Args:
        settings: of the teachers.
    """

    settings: PoolSettings
    directory: str = ""
    """Private; holds the sockets."""
    _folder: ExitStack = field(default_factory=ExitStack)
    _process: BaseProcess | None = None
    _lifeline: tuple[int, int] = field(default=(-1, -1))

    @property
    def private(self) -> str:
        """What the addresses of its teachers begin with."""
        return f"ipc://{self.directory or '/nowhere'}/"

    @property
    def registry_address(self) -> str:
        """Where its registry listens."""
        return f"ipc://{self.directory}/registry"

    def __enter__(self) -> Self:
        self.directory = str(self._folder.enter_context(private_directory()))
        self._lifeline = os.pipe()
        receiver, sender = FORK.Pipe(duplex=False)
        with quiet_fork():
            self._process = FORK.Process(
                target=_pool_main, args=(self, sender), name="naspipe-teachers", daemon=False
            )
            self._process.start()
        sender.close()
        os.close(self._lifeline[0])
        try:
            with receiver:
                problem = receiver.recv_bytes() if receiver.poll(_START_SECONDS) else b"no answer"
        except EOFError:
            problem = b"its end"
        if problem:
            self.__exit__(None, None, None)
            said = problem.decode("utf-8", "replace")
            raise ConfigError(f"teachers: expected the run's own registry to start, found {said}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._lifeline[1])
        if self._process is not None:
            self._process.join(10)
            end_all([self._process])
        self._folder.close()


def _pool_main(pool: TeacherPool, sender: Any) -> None:
    """Keep the registry, and as many teachers as were started or hired."""
    leave_signals_to_launcher()
    read_end, write_end = pool._lifeline
    os.close(write_end)
    settings, teachers = pool.settings, _Teachers(pool)
    is_over = threading.Event()
    threading.Thread(target=_wait_for_end, args=(read_end, is_over), daemon=True).start()
    context: zmq.Context[Any] = zmq.Context()
    table = CardTable(hire=teachers.hire, release=teachers.release)
    try:
        addresses = [pool.registry_address, *filter(None, [settings.listens_at])]
        try:
            sockets = {
                listen(context, address): address == pool.registry_address for address in addresses
            }
        except TransportError as error:
            sender.send_bytes(str(error).encode())
            return
        sender.send_bytes(b"")
        sender.close()
        teachers.start(settings.count)
        while not is_over.is_set():
            serve(sockets, table, _WAIT_MS)
    finally:
        teachers.end()
        context.destroy(linger=0)
        shutil.rmtree(pool.directory, ignore_errors=True)  # whoever made it may be gone


def _wait_for_end(read_end: int, is_over: threading.Event) -> None:
    """Until the only holder of the pipe's other end has closed it, or is gone."""
    os.read(read_end, 1)
    is_over.set()


class _Teachers:
    """The processes of the teachers, by name."""

    def __init__(self, pool: TeacherPool) -> None:
        self._pool = pool
        self._lifeline = os.pipe()
        self._processes: dict[str, BaseProcess] = {}
        self._number = 0

    def start(self, count: int) -> None:
        for _ in range(count):
            name = f"teacher-{self._number}"
            self._number += 1
            process = FORK.Process(
                target=_teacher_main,
                args=(self._pool, name, self._lifeline),
                name=f"naspipe-{name}",
            )
            with quiet_fork():
                process.start()
            self._processes[name] = process

    def hire(self, count: int) -> None:
        """Start so many, as far as the settings go; none when they fail one after the other."""
        failed = sum((process.exitcode or 0) > 0 for process in self._processes.values())
        if failed >= _MOST_FAILED:
            return
        alive = sum(process.is_alive() for process in self._processes.values())
        self.start(max(0, min(count, self._pool.settings.most - alive)))

    def release(self, name: str) -> None:
        process = self._processes.get(name)
        if process is not None and process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGTERM)

    def end(self) -> None:
        end_all(list(self._processes.values()))


def _teacher_main(pool: TeacherPool, name: str, lifeline: tuple[int, int]) -> None:
    read_end, write_end = lifeline
    os.close(write_end)
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: is_over.set())
    threading.Thread(target=end_with_parent, args=(read_end,), daemon=True).start()
    threads = pool.settings.workload.recipe.threads
    in_own_thread(threads, lambda: _serve_labels(pool, name, is_over))


def _serve_labels(pool: TeacherPool, name: str, is_over: threading.Event) -> None:
    settings = pool.settings
    threads = settings.workload.recipe.threads
    with ExitStack() as stack:
        stack.enter_context(deterministic_torch(threads))
        stack.enter_context(kept_heap())
        devices = stage_devices(settings.device, settings.stages)
        network = staged_network(settings.workload, devices, stack)
        own = label_key(settings.workload.definition)

        def open_network(wanted: Mapping[str, Any]) -> LabelNetwork:
            check_wanted(own, wanted)
            return network

        card = TeacherCard(
            name=name,
            address=f"ipc://{pool.directory}/{name}",
            public_key="",
            digest=settings.workload.definition.teacher,
            numeric_class=numeric_class(settings.device, threads),
        )
        seat = TeacherSeat(
            card=card,
            registry=OwnRegistry(pool.registry_address),
            ttl_seconds=settings.ttl_seconds,
            pace_seconds=settings.pace_seconds,
        )
        TeacherServer(seat, open_network, is_over=is_over).run()

"""Remote teachers: the needs of a run with ``labels=service``, and the server ``naspipe teach``."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.space import Space
from naspipe.distill.admission_check import Asking, Terms, make_admission_check
from naspipe.distill.label_file import label_key, label_workload
from naspipe.distill.label_network import Forward, LabelNetwork, fields_of
from naspipe.distill.registry import OwnRegistry, RegistryWatch, open_registry
from naspipe.distill.teacher_card import TeacherCard, numeric_class, own_pair, read_keys
from naspipe.distill.teacher_pool import TeacherPool
from naspipe.distill.teacher_server import (
    TeacherSeat,
    TeacherServer,
    check_wanted,
    stage_devices,
    staged_network,
)
from naspipe.distill.teachers import Teacher
from naspipe.jobs.ports import SourceSeat
from naspipe.jobs.workload import Batches, Workload
from naspipe.label_scheduler.scheduler import LabelScheduler, SchedulerSettings
from naspipe.machine.determinism import deterministic_torch
from naspipe.machine.forking import ASKING

_GRACE_SECONDS = 0.1
"""Additional time allowed for an answer on a machine that is busy with other work."""

_RELEASE_SECONDS = 300.0
"""One of the run's own teachers that was not needed for this long is released."""

_MOST_NETWORKS = 16
"""Maximum number of networks per teacher, one for each seed and data; the oldest is replaced."""


class LabelService:
    """Both sides of a run with ``labels=service``: its own teachers, and its student's requests.

    Args:
        teacher: its network, with the student's data; its definition contains its digest.
        execution: how the run is executed.

    Raises:
        ConfigError: for a file of keys that cannot be read, or if the registry's client is missing.
        TransportError: if there is no registry.
    """

    def __init__(self, teacher: Workload, execution: Execution) -> None:
        self._teacher, self._execution = teacher, execution
        way = execution.teaching
        _check_stages(teacher.space, way.teacher_stages)
        # With tcp:// the run's own registry also listens at that address.
        self._is_elsewhere = bool(way.registry) and not way.registry.startswith("tcp://")
        if self._is_elsewhere:
            open_registry(way.registry).cards()
        self._keys = read_keys(Path(way.keys)) if way.keys else frozenset[str]()
        self._pool = TeacherPool(teacher, execution, "" if self._is_elsewhere else way.registry)

    @property
    def attendants(self) -> tuple[AbstractContextManager[Any], ...]:
        return (self._pool,)

    def begin(self, seat: SourceSeat) -> Asking:
        """Prepare the student's side, in the process of the stage that computes the loss."""
        way, recipe = self._execution.teaching, self._teacher.recipe
        device = self._execution.hardware.device
        settings = SchedulerSettings(
            upper=way.ahead,
            lower=way.again,
            deadline_factor=way.deadline,
            grace_seconds=_GRACE_SECONDS,
            audit=way.audit,
            most=max(1, way.teachers_most or way.teachers) if not way.registry else 1 << 16,
            release_seconds=0.0 if way.registry else _RELEASE_SECONDS,
            load_seconds=max(1.0, way.ttl_seconds),
            last_batch=len(seat.batches) - 1,
        )
        terms = Terms(
            digest=self._teacher.definition.teacher,
            numeric_class=numeric_class(device, recipe.threads),
            check=make_admission_check(self._teacher, device, seat.batches),
            keys=self._keys,
            private=self._pool.private,
        )
        more = [open_registry(way.registry)] if self._is_elsewhere else []
        if self._pool.directory:
            own = OwnRegistry(self._pool.registry_address)
            watch = RegistryWatch([own, *more], way.ttl_seconds, own)
        else:  # a stage on another host
            watch = RegistryWatch(more, way.ttl_seconds)
        return Asking(
            scheduler=LabelScheduler(settings, self._teacher.definition.seed),
            watch=watch,
            key=label_key(self._teacher.definition),
            terms=terms,
            timeout_seconds=self._execution.watch.timeout_seconds,
            fields=partial(fields_of, self._teacher),
            sends_fields=way.inputs == "sent",
        )


def _check_stages(space: Space, stages: int) -> None:
    if stages > len(space):
        raise ConfigError(
            f"teacher: expected one process per block at most, found {stages} for {len(space)} "
            f"blocks"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Teaching:
    """How a teacher is found and reached."""

    registry: str
    """``redis://...``, or ``tcp://HOST:PORT`` of a run."""
    host: str = "127.0.0.1"
    """Address of this machine at which students reach the teacher."""
    port: int = 0
    """0 for any free port."""
    key: Path
    """File of its CURVE keys, which is created if it does not exist."""
    device: str = "cpu"
    stages: int = 1
    """Number of processes among which its blocks are divided if one device is too small."""
    threads: int = 1
    ttl_seconds: float = 6.0
    pace_seconds: float = 0.0
    """Minimum time of an answer."""


def teach(
    teacher: Teacher,
    find_data: Callable[[Mapping[str, Any]], Batches],
    way: Teaching,
    say: Callable[[str], None],
) -> int:
    """Serve labels until SIGTERM, SIGINT or SIGHUP, and return the number of labels computed.

    Args:
        teacher: a teacher in mode ``eval``.
        find_data: returns the data of a student, given their record in the student's definition.
        way: how the teacher is found and reached.
        say: called with each line for the user.

    Raises:
        ConfigError: for an invalid address of a registry, or keys that cannot be read.
        TransportError: if there is no registry, or the port is in use.
    """
    if teacher.mode != "eval":
        raise ConfigError(f"labels: expected a teacher in mode eval, found {teacher.mode}")
    _check_stages(teacher.space, way.stages)
    registry = open_registry(way.registry)
    registry.cards()
    public, secret = own_pair(way.key)
    card = TeacherCard(
        name=f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(3)}",
        address=f"tcp://{way.host}:{way.port or _free_port(way.host)}",
        public_key=public,
        digest=teacher.digest,
        numeric_class=numeric_class(way.device, way.threads),
    )
    seat = TeacherSeat(
        card=card,
        secret_key=secret,
        registry=registry,
        ttl_seconds=way.ttl_seconds,
        pace_seconds=way.pace_seconds,
    )
    networks: dict[str, LabelNetwork] = {}
    forwards: list[Forward] = []
    """The layers, created for the first student and shared by all."""
    with ExitStack() as stack:

        def open_network(wanted: Mapping[str, Any]) -> LabelNetwork:
            """Return the network for a student's key, and create it if necessary."""
            text = repr(sorted(wanted.items()))
            if text not in networks:
                workload = _wanted_workload(teacher, find_data, wanted, way.threads)
                if not forwards:
                    devices = stage_devices(way.device, way.stages)
                    forwards.append(staged_network(workload, devices, stack).forward)
                where = torch.device(way.device if way.stages == 1 else "cpu")
                network = LabelNetwork(workload=workload, forward=forwards[0], device=where)
                while len(networks) >= _MOST_NETWORKS:
                    del networks[next(iter(networks))]
                networks[text] = network
                say(f"a student of seed {wanted.get('seed')} is served")
            return networks[text]

        stack.enter_context(deterministic_torch(way.threads))
        is_over = threading.Event()
        server = TeacherServer(seat, open_network, say, is_over)
        before = {
            number: signal.signal(number, lambda *_: is_over.set())
            for number in ASKING
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        say(f"{card.name} at {card.address}, public key {public}")
        try:
            server.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return server.num_answered


def _wanted_workload(
    teacher: Teacher,
    find_data: Callable[[Mapping[str, Any]], Batches],
    wanted: Mapping[str, Any],
    threads: int,
) -> Workload:
    seed, precision, record = (wanted.get(name) for name in ("seed", "precision", "data"))
    if type(seed) is not int or not isinstance(precision, str) or not isinstance(record, dict):
        raise ConfigError("labels: expected a student's seed, precision and data, found others")
    recipe = Recipe(precision=precision, threads=threads)
    try:
        data = find_data(record)
        own = label_key(label_workload(teacher, data, seed, recipe).definition)
    except ConfigError as error:
        problem = str(error)

        def data(seed: int, number: int) -> Mapping[str, torch.Tensor]:
            raise ConfigError(f"{problem}; use teacher_inputs=sent")

        own = {"teacher": teacher.digest}
    check_wanted(own, wanted)
    return label_workload(teacher, data, seed, recipe)


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise ConfigError(
                f"--host {host}: expected an address of this machine, found {error.strerror}"
            ) from None
        return int(probe.getsockname()[1])

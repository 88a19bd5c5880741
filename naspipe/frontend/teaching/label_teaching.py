"""One more teacher for runs elsewhere: it joins, answers, and goes when it is told to."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from naspipe.config.definition import Recipe
from naspipe.config.errors import ConfigError
from naspipe.frontend.teaching.label_service import check_stages
from naspipe.frontend.teaching.label_writing import label_workload
from naspipe.frontend.teaching.teachers import Teacher
from naspipe.runtime.devices.determinism import deterministic_torch
from naspipe.runtime.forking.fork import ASKING
from naspipe.runtime.jobs.workload import Batches, Workload
from naspipe.runtime.labels.label_file import label_key
from naspipe.runtime.labels.label_network import Forward, LabelNetwork
from naspipe.runtime.registries.open_registry import open_registry
from naspipe.runtime.registries.teacher_card import TeacherCard, numeric_class
from naspipe.runtime.registries.teacher_keys import own_pair
from naspipe.runtime.teachers.staged_blocks import stage_devices, staged_network
from naspipe.runtime.teachers.teacher_server import TeacherSeat, TeacherServer, check_wanted

"""Students' seeds and data that are kept at a time; a new one takes the place of the oldest."""

_MOST_KINDS = 16
"""Students' seeds and data that are kept at a time; a new one takes the place of the oldest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Teaching:
    """How a teacher is found and reached."""

    registry: str
    """``redis://...``, or ``tcp://HOST:PORT`` of a run."""
    host: str = "127.0.0.1"
    """An address of this machine that students reach."""
    port: int = 0
    """0 for any that is free."""
    key: Path
    """Its CURVE keys; made where the file does not exist."""
    device: str = "cpu"
    stages: int = 1
    """Processes that its blocks lie in, where one device is too small."""
    threads: int = 1
    ttl_seconds: float = 6.0
    pace_seconds: float = 0.0
    """It answers no sooner."""


def teach(
    teacher: Teacher,
    find_data: Callable[[Mapping[str, Any]], Batches],
    way: Teaching,
    say: Callable[[str], None],
) -> int:
    """Serve labels until SIGTERM, SIGINT or SIGHUP; returns how many were made.

    Args:
        teacher: in mode ``eval``.
        find_data: the data of a student, from their record in its definition.
        way: how it is found and reached.
        say: takes lines for whoever watches.

    Raises:
        ConfigError: for a registry that cannot be, or keys that cannot be read.
        TransportError: when there is no registry, or the port is taken.
    """
    if teacher.mode != "eval":
        raise ConfigError(f"labels: expected a teacher in mode eval, found {teacher.mode}")
    check_stages(teacher.space, way.stages)
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
    with ExitStack() as stack:
        open_network = _networks(teacher, find_data, way, say, stack)
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


def _networks(
    teacher: Teacher,
    find_data: Callable[[Mapping[str, Any]], Batches],
    way: Teaching,
    say: Callable[[str], None],
    stack: ExitStack,
) -> Callable[[Mapping[str, Any]], LabelNetwork]:
    """Makes the network for what a student wants, or finds it."""
    made: dict[str, LabelNetwork] = {}
    forwards: list[Forward] = []
    """The layers, made for the first student and the same for all."""

    def open_network(wanted: Mapping[str, Any]) -> LabelNetwork:
        text = repr(sorted(wanted.items()))
        if text not in made:
            workload = _wanted_of(teacher, find_data, wanted, way)
            if not forwards:
                devices = stage_devices(way.device, way.stages)
                forwards.append(staged_network(workload, devices, stack).forward)
            where = torch.device(way.device if way.stages == 1 else "cpu")
            found = LabelNetwork(workload=workload, forward=forwards[0], device=where)
            while len(made) >= _MOST_KINDS:
                del made[next(iter(made))]
            made[text] = found
            say(f"a student of seed {wanted.get('seed')} is served")
        return made[text]

    return open_network


def _wanted_of(
    teacher: Teacher,
    find_data: Callable[[Mapping[str, Any]], Batches],
    wanted: Mapping[str, Any],
    way: Teaching,
) -> Workload:
    """The teacher's network with a student's data, seed and precision."""
    seed, precision, record = (wanted.get(name) for name in ("seed", "precision", "data"))
    if type(seed) is not int or not isinstance(precision, str) or not isinstance(record, dict):
        raise ConfigError("labels: expected a student's seed, precision and data, found others")
    recipe = Recipe(precision=precision, threads=way.threads)
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

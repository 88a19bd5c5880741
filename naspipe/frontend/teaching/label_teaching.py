"""One more teacher for runs elsewhere: it joins, answers, and goes when it is told to."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from naspipe.core.config import Recipe
from naspipe.core.errors import ConfigError
from naspipe.frontend.teaching.label_writing import label_workload
from naspipe.frontend.teaching.teachers import Teacher
from naspipe.runtime.devices.determinism import deterministic_torch
from naspipe.runtime.jobs.workload import Batches
from naspipe.runtime.labels.label_file import label_key
from naspipe.runtime.labels.label_network import LabelNetwork
from naspipe.runtime.registries.open_registry import open_registry
from naspipe.runtime.registries.teacher_card import TeacherCard, numeric_class
from naspipe.runtime.registries.teacher_keys import own_pair
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
    """Serve labels until SIGTERM or SIGINT; returns how many were made.

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
    open_network = _networks(teacher, find_data, way, say)
    with deterministic_torch(way.threads):
        is_over = threading.Event()
        server = TeacherServer(seat, open_network, say, is_over)
        before = {
            number: signal.signal(number, lambda *_: is_over.set())
            for number in (signal.SIGTERM, signal.SIGINT)
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
) -> Callable[[Mapping[str, Any]], LabelNetwork]:
    """Makes the network for what a student wants, or finds it."""
    made: dict[str, LabelNetwork] = {}

    def open_network(wanted: Mapping[str, Any]) -> LabelNetwork:
        text = repr(sorted(wanted.items()))
        if text not in made:
            found = _network(teacher, find_data, wanted, way, next(iter(made.values()), None))
            while len(made) >= _MOST_KINDS:
                del made[next(iter(made))]
            made[text] = found
            say(f"a student of seed {wanted.get('seed')} is served")
        return made[text]

    return open_network


def _network(
    teacher: Teacher,
    find_data: Callable[[Mapping[str, Any]], Batches],
    wanted: Mapping[str, Any],
    way: Teaching,
    another: LabelNetwork | None,
) -> LabelNetwork:
    """For what a student wants, with the layers of another student's."""
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
    workload = label_workload(teacher, data, seed, recipe)
    if another is not None:
        return replace(another, workload=workload)
    return LabelNetwork.of(workload, way.device)


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise ConfigError(
                f"--host {host}: expected an address of this machine, found {error.strerror}"
            ) from None
        return int(probe.getsockname()[1])

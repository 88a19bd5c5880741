"""A run whose stages are on several hosts: where each worker listens, and what rank 0 tells."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import zmq

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError, TransportError
from naspipe.runtime.jobs.job import TrainingJob
from naspipe.runtime.processes.liveness import Place
from naspipe.runtime.processes.rendezvous import Worker, WorkerCard, exchange_cards, parent_identity
from naspipe.runtime.wire.endpoints import Endpoints, check_ports
from naspipe.runtime.wire.transport import connect_outbox

JOB, ALIVE, END = "job", "alive", "end"
_SIOCGIFADDR = 0x8915
_BEAT_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """One worker's knowledge of all."""

    worker: Worker
    endpoints: Endpoints
    agents: tuple[str, ...]
    """Where the agents of the ranks from 1 on listen."""
    started_by: tuple[str, ...]
    """The process that started each worker."""
    names: tuple[str, ...]
    """What the hosts of all workers call themselves."""
    token: str
    """Of this life: rank 0 writes it into the run directory, where all must find it."""

    @property
    def places(self) -> list[Place]:
        """Of each worker."""
        addresses = [each.removeprefix("tcp://") for each in self.endpoints.workers]
        return [Place(*each) for each in zip(self.names, addresses, strict=True)]


def join(worker: Worker, execution: Execution) -> Hosts:
    """Meet the other workers.

    Raises:
        ConfigError: when this worker or another one cannot take part.
        TransportError: when they do not meet within ``timeout_seconds``.
    """
    public, secret = zmq.curve_keypair()
    card = _card(worker, execution, public)
    cards = exchange_cards(worker, card, execution.watch.timeout_seconds)
    addresses = [
        [f"tcp://{each.address}:{port}" for port in _ports(execution, rank)]
        for rank, each in enumerate(cards)
    ]
    keys = {
        address: each.public_key.encode()
        for each, listens in zip(cards, addresses, strict=True)
        for address in listens
    }
    stages = tuple(stage for _, stage in addresses)
    return Hosts(
        worker=worker,
        endpoints=Endpoints(stages, addresses[0][0], keys, (public, secret)),
        agents=tuple(agent for agent, _ in addresses[1:]),
        started_by=tuple(each.started_by for each in cards),
        names=tuple(each.host for each in cards),
        token=cards[0].public_key,
    )


def _ports(execution: Execution, rank: int) -> range:
    """Of the launcher or the agent, and of the stage."""
    return range(execution.wire.port + 2 * rank, execution.wire.port + 2 * rank + 2)


def _card(worker: Worker, execution: Execution, public: bytes) -> WorkerCard:
    address = problem = ""
    try:
        address = own_address(worker, execution.wire.interface)
        check_ports(address, _ports(execution, worker.rank))
    except ConfigError as error:
        problem = str(error)
    return WorkerCard(
        address=address,
        public_key=public.decode(),
        started_by=parent_identity(),
        problem=problem,
        host=os.uname().nodename,
    )


def own_address(worker: Worker, interface: str = "") -> str:
    """The address of this host that the others reach: an interface's, or the store's way.

    Raises:
        ConfigError: when there is none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            if interface:
                name = struct.pack("256s", interface.encode()[:15])
                return socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, name)[20:24])
            probe.connect((worker.address, worker.port))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError as error:
            what = f"interface {interface}" if interface else f"way to {worker.address}"
            raise ConfigError(
                f"expected an IPv4 address by the {what}, found {error.strerror}; "
                f"choose one with --set interface=NAME"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherHosts:
    """Rank 0's knowledge of the others, and of what to tell them."""

    hosts: Hosts
    assign: Callable[[TrainingJob], Mapping[str, Any]]
    """What the other workers need to make the job."""


class Announcer:
    """Rank 0's way to the agents, through a context of the launcher; on one machine, to nobody."""

    def __init__(self, context: zmq.Context[Any], hosts: Hosts | None) -> None:
        agents = hosts.agents if hosts else ()
        self._outboxes = [
            connect_outbox(context, each, hosts.endpoints) for each in agents if hosts
        ]
        self._told = 0.0

    def tell(self, what: str, body: object = None) -> None:
        """Tell every agent: ``job``, ``alive`` or ``end``."""
        self._told = time.monotonic()
        for outbox in self._outboxes:
            outbox.send(msgpack.packb([what, body]))

    def beat(self) -> None:
        """Give a sign of life, unless there was one just now."""
        if time.monotonic() - self._told > _BEAT_SECONDS:
            self.tell(ALIVE)


def tell_end(
    hosts: Hosts, problem: str, signal_number: int = 0, linger_seconds: float = 3.0
) -> None:
    """Tell every agent that the run has ended.

    Args:
        hosts: where they are.
        problem: why; empty where all is well.
        signal_number: what asked for it; 0 where nobody did.
        linger_seconds: how long to wait until all have heard it.
    """
    context: zmq.Context[Any] = zmq.Context()
    try:
        Announcer(context, hosts).tell(END, [problem, signal_number])
    finally:
        context.destroy(linger=int(linger_seconds * 1000))


def read_word(data: bytes) -> tuple[str, Any]:
    """What rank 0 told.

    Raises:
        TransportError: when it is nothing that rank 0 tells.
    """
    try:
        what, body = msgpack.unpackb(data)
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise TransportError(f"a word of rank 0 cannot be read: {error}") from error
    return str(what), body

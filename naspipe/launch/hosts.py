"""Runs on several hosts: the rendezvous of workers, and messages from rank 0 to the others."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgpack
import torch.distributed
import zmq

from naspipe.config.errors import ConfigError, TransportError
from naspipe.config.execution import Execution
from naspipe.launch.claim import start_ticks
from naspipe.launch.liveness import Place
from naspipe.wire.endpoints import Endpoints, check_ports
from naspipe.wire.transport import connect_outbox
from naspipe.worker.job import TrainingJob

_CALL = "naspipe/call"
_ANSWER_TIME = timedelta(seconds=1)

SHARED_NAMES = (
    "where hosts share a name, or resolve it to themselves, start torchrun with --local-addr "
    "ADDRESS on each, and with --rdzv-conf is_host=1 on the first, is_host=0 on the others"
)
"""Advice in messages if the host names of torchrun cannot be resolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One of the processes that torchrun started with the same command."""

    rank: int
    world_size: int
    local_rank: int
    address: str
    """The address of the store."""
    port: int
    hosts_store: bool
    """Whether rank 0 must create the store, because its parent has not."""
    is_torchruns: bool = False
    """Whether torchrun started this worker and restarts it after a failure."""

    @staticmethod
    def find() -> Worker | None:
        """Return this process as a worker; see :meth:`of`."""
        return Worker.of(os.environ)

    @staticmethod
    def of(environment: Mapping[str, str]) -> Worker | None:
        """Return the worker that an environment describes; None outside of torchrun.

        Raises:
            ConfigError: if its variables are invalid.
        """
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if not all(name in environment for name in names):
            return None
        try:
            worker = Worker(
                rank=int(environment["RANK"]),
                world_size=int(environment["WORLD_SIZE"]),
                local_rank=int(environment.get("LOCAL_RANK", "0")),
                address=environment["MASTER_ADDR"],
                port=int(environment["MASTER_PORT"]),
                hosts_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
                is_torchruns="TORCHELASTIC_RUN_ID" in environment,
            )
        except ValueError as error:
            raise ConfigError(
                f"environment: expected whole numbers in {', '.join(names)}, found {error}"
            ) from None
        if not 0 <= worker.rank < worker.world_size:
            raise ConfigError(
                f"environment: expected RANK below WORLD_SIZE, found {worker.rank} of "
                f"{worker.world_size}"
            )
        return worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCard:
    """The data about a worker that it sends to the others."""

    address: str
    """The address of its host for the others."""
    public_key: str
    started_by: str
    """The identity of its parent process, which does not change in a restart."""
    problem: str = ""
    """The reason why it cannot take part; empty if it can."""
    host: str = ""
    """The name of its host."""


def parent_identity() -> str:
    """Return an identity of the parent process that no other process ever has."""
    parent = os.getppid()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
    started = start_ticks(parent)
    return f"{boot}/{parent}/{started}" if started else ""


def exchange_cards(worker: Worker, card: WorkerCard, seconds: float) -> list[WorkerCard]:
    """Exchange the cards of all workers, and return them by rank.

    Raises:
        ConfigError: if a worker cannot take part.
        TransportError: if not all workers have joined in time.
    """
    where = f"{worker.address}:{worker.port}"
    try:
        store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
            worker.address,
            worker.port,
            is_master=worker.hosts_store and worker.rank == 0,
            wait_for_workers=False,
            timeout=timedelta(seconds=seconds),
        )
        exchange = _call if worker.rank == 0 else _answer
        deal = exchange(store, worker, card, seconds)
    except RuntimeError as error:
        raise TransportError(
            f"rank {worker.rank} on {os.uname().nodename}: the workers did not meet at {where} "
            f"within {seconds:g} s: {' '.join(str(error).split()):.200}; {SHARED_NAMES}"
        ) from error
    cards = [WorkerCard(**each) for each in json.loads(deal)]
    if problems := [
        f"rank {rank}{f' on {each.host}' if each.host else ''}: {each.problem}"
        for rank, each in enumerate(cards)
        if each.problem
    ]:
        raise ConfigError("; ".join(problems))
    _check_reachable(cards)
    return cards


def _check_reachable(cards: Sequence[WorkerCard]) -> None:
    """Raise ConfigError if one of several machines has an address that others cannot reach."""
    machines = {each.started_by.partition("/")[0] for each in cards} - {""}
    for rank, each in enumerate(cards) if len(machines) > 1 else ():
        if each.address.startswith("127."):
            raise ConfigError(
                f"rank {rank} on {each.host or 'its host'}: expected an address that other hosts "
                f"reach, found {each.address}; {SHARED_NAMES}"
            )


def _call(store: Any, worker: Worker, card: WorkerCard, seconds: float) -> str:
    """As rank 0, publish a new number, collect the answers to it, and publish all of them."""
    number = secrets.token_hex(8)
    store.set(_CALL, number)
    cards = [asdict(card)]
    deadline = time.monotonic() + seconds
    for rank in range(1, worker.world_size):
        left = timedelta(seconds=max(0.1, deadline - time.monotonic()))
        store.wait([f"naspipe/{number}/{rank}"], left)
        cards.append(json.loads(store.get(f"naspipe/{number}/{rank}")))
    deal = json.dumps(cards)
    store.set(f"naspipe/{number}/deal", deal)
    if worker.hosts_store:  # the store ends with this process, so wait until all have read it
        for rank in range(1, worker.world_size):
            store.wait([f"naspipe/{number}/{rank}/read"], timedelta(seconds=seconds))
    return deal


def _answer(store: Any, worker: Worker, card: WorkerCard, seconds: float) -> str:
    """As another rank, answer the current call, which may initially be of an earlier attempt."""
    store.wait([_CALL], timedelta(seconds=seconds))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        number = store.get(_CALL).decode()
        store.set(f"naspipe/{number}/{worker.rank}", json.dumps(asdict(card)))
        try:
            store.wait([f"naspipe/{number}/deal"], _ANSWER_TIME)
        except RuntimeError:
            continue
        deal = store.get(f"naspipe/{number}/deal").decode()
        dealt = json.loads(deal)
        # A deal of an earlier attempt contains a different key of this worker.
        if len(dealt) == worker.world_size and dealt[worker.rank] == asdict(card):
            store.set(f"naspipe/{number}/{worker.rank}/read", "")
            return str(deal)
        time.sleep(
            _ANSWER_TIME.total_seconds()
        )  # an earlier deal; the store offers no way to wait for a change
    raise TransportError("rank 0 does not answer")


JOB, ALIVE, END = "job", "alive", "end"
_SIOCGIFADDR = 0x8915
_BEAT_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The data of all workers, as known to one worker."""

    worker: Worker
    endpoints: Endpoints
    agents: tuple[str, ...]
    """Addresses of the agents, which are the ranks from 1 on."""
    started_by: tuple[str, ...]
    """The identity of each worker's parent process."""
    names: tuple[str, ...]
    """Names of the hosts of all workers."""
    token: str
    """A token of this attempt, which rank 0 writes to the run directory for all workers to find."""

    @property
    def places(self) -> list[Place]:
        addresses = [each.removeprefix("tcp://") for each in self.endpoints.workers]
        return [Place(*each) for each in zip(self.names, addresses, strict=True)]


def join(worker: Worker, execution: Execution) -> Hosts:
    """Join the other workers of the run.

    Raises:
        ConfigError: if a worker cannot take part.
        TransportError: if not all workers join within ``timeout_seconds``.
    """
    public, secret = zmq.curve_keypair()
    address = problem = ""
    try:
        address = own_address(worker, execution.wire.interface)
        check_ports(address, _ports(execution, worker.rank))
    except ConfigError as error:
        problem = str(error)
    card = WorkerCard(
        address=address,
        public_key=public.decode(),
        started_by=parent_identity(),
        problem=problem,
        host=os.uname().nodename,
    )
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
    """Return the ports of the launcher or the agent, and of the stage."""
    return range(execution.wire.port + 2 * rank, execution.wire.port + 2 * rank + 2)


def own_address(worker: Worker, interface: str = "") -> str:
    """Return the address of this host for others: of an interface, or on the route to the store.

    Raises:
        ConfigError: if no address is found.
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
    """The other hosts as known to rank 0, and the data that it sends to them."""

    hosts: Hosts
    assign: Callable[[TrainingJob], Mapping[str, Any]]
    """Returns the data that the other workers need to create the job."""


class Announcer:
    """Sends messages from rank 0 to the agents; a run on one host has no agents."""

    def __init__(self, context: zmq.Context[Any], hosts: Hosts | None) -> None:
        self._outboxes: list[zmq.Socket[Any]] = []
        if hosts:
            self._outboxes = [
                connect_outbox(context, each, hosts.endpoints) for each in hosts.agents
            ]
        self._told = 0.0

    def tell(self, what: str, body: object = None) -> None:
        """Send ``job``, ``alive`` or ``end`` to every agent."""
        self._told = time.monotonic()
        for outbox in self._outboxes:
            outbox.send(msgpack.packb([what, body]))

    def beat(self) -> None:
        """Send a heartbeat, unless something was sent just before."""
        if time.monotonic() - self._told > _BEAT_SECONDS:
            self.tell(ALIVE)


def tell_end(
    hosts: Hosts, problem: str, signal_number: int = 0, linger_seconds: float = 3.0
) -> None:
    """Notify every agent that the run has ended, within ``linger_seconds``.

    ``problem`` is the reason, empty after a normal end; ``signal_number`` is the signal that
    requested the end, or 0.
    """
    context: zmq.Context[Any] = zmq.Context()
    try:
        Announcer(context, hosts).tell(END, [problem, signal_number])
    finally:
        context.destroy(linger=int(linger_seconds * 1000))


def read_word(data: bytes) -> tuple[str, Any]:
    """Decode a message of rank 0.

    Raises:
        TransportError: if ``data`` is not such a message.
    """
    try:
        what, body = msgpack.unpackb(data)
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise TransportError(f"a word of rank 0 cannot be read: {error}") from error
    return str(what), body

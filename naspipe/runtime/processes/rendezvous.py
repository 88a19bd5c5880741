"""How the workers of several hosts find one another: one card each, through torch's store.

The store is torchrun's (or rank 0's). It has no authentication, so it carries addresses and
public keys only, and is let go of when the cards are dealt.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed

from naspipe.config.errors import ConfigError, TransportError

_CALL = "naspipe/call"
_PATIENCE = timedelta(seconds=1)

SHARED_NAMES = (
    "where hosts share a name, or resolve it to themselves, start torchrun with --local-addr "
    "ADDRESS on each, and with --rdzv-conf is_host=1 on the first, is_host=0 on the others"
)
"""What to do where torchrun's names lead nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One of the processes that torchrun has started with the same command."""

    rank: int
    world_size: int
    local_rank: int
    address: str
    """Of the store."""
    port: int
    hosts_store: bool
    """Whether rank 0 has to make the store itself: who started it has not."""
    is_torchruns: bool = False
    """Whether torchrun started it, which starts another one in its place when it fails."""

    @staticmethod
    def find() -> Worker | None:
        """This process as a worker; see :meth:`of`."""
        return Worker.of(os.environ)

    @staticmethod
    def of(environment: Mapping[str, str]) -> Worker | None:
        """The worker that an environment describes; None outside of torchrun.

        Raises:
            ConfigError: when its variables are not what they should be.
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
    """What a worker says of itself."""

    address: str
    """Of its host, as the others reach it."""
    public_key: str
    started_by: str
    """The process that started it: the same one after a restart."""
    problem: str = ""
    """Why it cannot take part."""
    host: str = ""
    """What its host calls itself."""


def parent_identity() -> str:
    """The process that started this one, so that no other one ever has the same name."""
    parent = os.getppid()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        stat = Path(f"/proc/{parent}/stat").read_text("ascii", "replace")
        started = stat.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
    return f"{boot}/{parent}/{started}"


def exchange_cards(worker: Worker, card: WorkerCard, seconds: float) -> list[WorkerCard]:
    """Deal the cards of all workers to all of them; returns them by rank.

    Raises:
        ConfigError: when one of them cannot take part.
        TransportError: when not all have come in time.
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
        deal = _call(store, worker, card, seconds) if worker.rank == 0 else _answer(
            store, worker, card, seconds
        )  # fmt: skip
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
    """Of several machines, none may have an address that only itself reaches.

    Raises:
        ConfigError: naming the first that has.
    """
    machines = {each.started_by.partition("/")[0] for each in cards} - {""}
    for rank, each in enumerate(cards) if len(machines) > 1 else ():
        if each.address.startswith("127."):
            raise ConfigError(
                f"rank {rank} on {each.host or 'its host'}: expected an address that other hosts "
                f"reach, found {each.address}; {SHARED_NAMES}"
            )


def _call(store: Any, worker: Worker, card: WorkerCard, seconds: float) -> str:
    """Rank 0: call under a new number, collect the answers to it, deal them out."""
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
    if worker.hosts_store:  # it ends with this process: wait until all have read it
        for rank in range(1, worker.world_size):
            store.wait([f"naspipe/{number}/{rank}/read"], timedelta(seconds=seconds))
    return deal


def _answer(store: Any, worker: Worker, card: WorkerCard, seconds: float) -> str:
    """The others: answer the call that stands; an earlier attempt's may do so at first."""
    store.wait([_CALL], timedelta(seconds=seconds))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        number = store.get(_CALL).decode()
        store.set(f"naspipe/{number}/{worker.rank}", json.dumps(asdict(card)))
        try:
            store.wait([f"naspipe/{number}/deal"], _PATIENCE)
        except RuntimeError:
            continue
        deal = store.get(f"naspipe/{number}/deal").decode()
        if _is_mine(deal, worker, card):
            store.set(f"naspipe/{number}/{worker.rank}/read", "")
            return str(deal)
        time.sleep(_PATIENCE.total_seconds())  # dealt long ago; the store cannot wait for a change
    raise TransportError("rank 0 does not answer")


def _is_mine(deal: str, worker: Worker, card: WorkerCard) -> bool:
    """Whether it holds this card: a deal of an earlier attempt holds another key."""
    cards = json.loads(deal)
    return len(cards) == worker.world_size and cards[worker.rank] == asdict(card)

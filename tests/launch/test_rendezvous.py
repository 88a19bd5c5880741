"""Workers that meet through torch's store, which may hold what earlier attempts left."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
import torch

from naspipe.config.errors import ConfigError, TransportError
from naspipe.launch.hosts import Worker, WorkerCard, exchange_cards

STORE = torch.distributed.TCPStore


@pytest.fixture
def store():
    """As torchrun has it: it outlives the attempts."""
    return STORE("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def worker(store, rank, size=3):
    return Worker(
        rank=rank, world_size=size, local_rank=0, address="127.0.0.1", port=store.port,
        hosts_store=False,
    )  # fmt: skip


def card(attempt, rank, problem=""):
    return WorkerCard(
        address=f"10.0.0.{rank}", public_key=f"{attempt}-{rank}", started_by="x", problem=problem
    )


def attempt(store, number, *, ranks=(0, 1, 2), problem="", seconds=10):
    with ThreadPoolExecutor(3) as pool:
        meetings = [
            pool.submit(
                exchange_cards,
                worker(store, r),
                card(number, r, problem if r == 2 else ""),
                seconds,
            )
            for r in ranks
        ]
        return [meeting.exception() or meeting.result() for meeting in meetings]


def test_all_have_all_cards(store):
    cards = [card(1, rank) for rank in range(3)]
    assert attempt(store, 1) == [cards] * 3


def test_what_an_earlier_attempt_left_means_nothing(store):
    attempt(store, 1)
    assert attempt(store, 2) == [[card(2, rank) for rank in range(3)]] * 3


def test_answers_to_a_call_that_nobody_follows(store):
    """Rank 0 of an earlier attempt has called and died; the others have answered it."""
    store.set("naspipe/call", "old")
    store.set("naspipe/old/1", "{}")
    with ThreadPoolExecutor(3) as pool:
        early = [pool.submit(exchange_cards, worker(store, r), card(2, r), 10) for r in (1, 2)]
        store.wait(["naspipe/old/2"], timedelta(seconds=5))
        cards = exchange_cards(worker(store, 0), card(2, 0), 10)
        assert [meeting.result() for meeting in early] == [cards] * 2


def test_one_that_cannot_take_part_is_named_to_all(store):
    found = attempt(store, 1, problem="port 5 is in use")
    assert {(type(each), str(each)) for each in found} == {
        (ConfigError, "rank 2: port 5 is in use")
    }


@pytest.mark.parametrize("ranks", [(0, 1), (1, 2)])
def test_one_that_does_not_come(store, ranks):
    start = time.monotonic()
    found = attempt(store, 1, ranks=ranks, seconds=1)
    assert all(isinstance(each, TransportError) for each in found)
    assert "did not meet at 127.0.0.1:" in str(found[0]) and time.monotonic() - start < 8


def test_workers_that_do_not_meet_say_what_hosts_with_one_name_need(store):
    (error,) = attempt(store, 1, ranks=(1,), seconds=1)
    said = str(error)
    assert isinstance(error, TransportError) and "\n" not in said
    assert said.startswith(
        f"rank 1 on {os.uname().nodename}: the workers did not meet at 127.0.0.1:"
    )
    assert "--local-addr ADDRESS" in said and "is_host=1" in said


@pytest.mark.parametrize(("machines", "is_reachable"), [(("a", "b"), False), (("a", "a"), True)])
def test_an_address_that_other_machines_do_not_reach(store, machines, is_reachable):
    cards = [
        replace(card(1, rank), address="127.0.1.1", started_by=f"{machine}/1/2", host=f"h{rank}")
        for rank, machine in enumerate(machines)
    ]
    with ThreadPoolExecutor(2) as pool:
        seats = [worker(store, rank, 2) for rank in range(2)]
        meetings = [
            pool.submit(exchange_cards, *each, 10) for each in zip(seats, cards, strict=True)
        ]
        found = [meeting.exception() for meeting in meetings]
    if is_reachable:
        assert found == [None, None]
        return
    for error in found:
        assert isinstance(error, ConfigError) and "\n" not in str(error)
        said = "rank 0 on h0: expected an address that other hosts reach, found 127.0.1.1"
        assert said in str(error)
        assert "--local-addr" in str(error)

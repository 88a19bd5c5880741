"""Workers that meet through torch's store, which may hold what earlier attempts left."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch

from naspipe.core.errors import ConfigError, TransportError
from naspipe.runtime.processes.rendezvous import Worker, WorkerCard, exchange_cards

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

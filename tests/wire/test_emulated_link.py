"""Messages over an emulated link: late, in order, and with the same bits."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.engine.events import TaskKind
from naspipe.store.access_log import read_run_accesses
from naspipe.wire.emulated_link import Arrivals, Link, LinkedTransport
from naspipe.wire.messages import InputMessage
from naspipe.wire.transport import Wakeup
from tests.equivalence import spaces
from tests.oracle import bits
from tests.wire.test_transport import endpoints_of
from tests.worker.tasks import task


def test_a_link_carries_one_message_after_the_other():
    arrivals = Arrivals(Link(1e9, 1e-6))  # a byte a nanosecond, a microsecond on the way
    arrivals.add(["a"], 1, 100, 500)
    arrivals.add(["b"], 1, 200, 300)
    arrivals.add(["c"], 2, 150, 0)
    assert arrivals.take(1149) is None and arrivals.until_next(1100) == pytest.approx(50e-9)
    assert arrivals.take(1150) == ["c"]
    assert arrivals.take(1599) is None and arrivals.take(1600) == ["a"]
    assert arrivals.take(1899) is None and arrivals.take(1900) == ["b"]
    assert arrivals.until_next(0) == float("inf")


def test_without_a_bandwidth_only_the_latency_counts():
    arrivals = Arrivals(Link(0, 1e-6))
    arrivals.add(["a"], 1, 0, 1 << 40)
    assert arrivals.take(1000) == ["a"]


def test_a_message_arrives_late_and_whole(tmp_path):
    sent = torch.randn(1000)
    with ExitStack() as stack:
        endpoints = endpoints_of("ipc", tmp_path)
        one, other = (
            stack.enter_context(
                LinkedTransport(Link(40_000, 0.05), n, endpoints, stack.enter_context(Wakeup()))
            )
            for n in range(2)
        )
        start = time.monotonic()
        one.send(1, InputMessage(task(5, TaskKind.FORWARD, 1), (), (sent,)))
        assert other.receive(0) is None
        while (message := other.receive(5.0)) is None:
            pass
        assert time.monotonic() - start > 4000 / 40_000 + 0.05
        assert bits(message.tensors[0]) == bits(sent)
        assert other.receive(0.01) is None


def test_a_run_over_a_slow_link_has_the_same_bits_and_takes_longer(tmp_path):
    found = []
    for latency in (0.0, 0.03):
        run = npp.train(
            spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=4, seed=1, stages=2,
            run_dir=tmp_path / str(latency),
            execution={"link_latency": latency, "link_bandwidth": 1e9 if latency else 0.0},
        )  # fmt: skip
        times = [access.end_ns for access in read_run_accesses(run.directory.path)]
        found.append((run.losses, (max(times) - min(times)) / 1e9))
    (losses, _), (same, slow) = found
    assert losses == same
    assert slow > 4 * 2 * 0.03, "there and back in each step, the end is exact"

"""How fast large activations go from process to process; writes artifacts/wire/real.json.

Tensors of 50 MB go from one stage's transport to another one's, each answered by a short message:
through memory that both share, and through ZeroMQ's ipc sockets alone, in alternation. Beside them
stands a plain copy of as many bytes in one process. With one under way at a time both copies of a
tensor come one after the other; with two, one side writes while the other one reads. Needs a quiet
machine with two free cores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from naspipe.config.ids import FIRST_STREAM, SequenceId, StageId, WorkerId
from naspipe.engine.events import Task, TaskKind
from naspipe.machine.determinism import describe_environment
from naspipe.wire.endpoints import Endpoints, ipc_endpoints
from naspipe.wire.messages import InputMessage
from naspipe.wire.transport import (
    Wakeup,
    ZmqTransport,
)
from scripts.bench.common import ROOT

SECONDS = 30.0
"""Deadline of every wait."""


def message(number: int, stage: int, tensors: tuple[torch.Tensor, ...]) -> InputMessage:
    """The input of a forward."""
    task = Task(FIRST_STREAM, SequenceId(number), TaskKind.FORWARD, StageId(stage))
    return InputMessage(task, (), tensors)


def answer(endpoints: Endpoints, count: int) -> None:
    """The second process: take tensors, answer each."""
    torch.set_num_threads(1)
    with ExitStack() as stack:
        transport = open_transport(1, endpoints, stack)
        for number in range(count):
            if transport.receive(SECONDS) is None:
                return
            transport.send(WorkerId(0), message(number, 0, ()))


def open_transport(worker: int, endpoints: Endpoints, stack: ExitStack) -> ZmqTransport:
    """One end."""
    wakeup = stack.enter_context(Wakeup())
    return stack.enter_context(ZmqTransport(WorkerId(worker), endpoints, wakeup))


def rate(is_shared: bool, nbytes: int, count: int, under_way: int) -> float:
    """Bytes a second from one process to another one, the first tensors left out."""
    with tempfile.TemporaryDirectory(prefix="naspipe-wire-") as place, ExitStack() as stack:
        endpoints = ipc_endpoints(Path(place), 2)
        if not is_shared:
            endpoints = replace(endpoints, rings=None)
        warm = 2 * under_way
        context = multiprocessing.get_context("fork")
        other = context.Process(target=answer, args=(endpoints, warm + count), daemon=True)
        other.start()
        transport = open_transport(0, endpoints, stack)
        tensors = [torch.rand(nbytes // 4) for _ in range(2)]
        start = time.perf_counter()
        for number in range(warm + count + under_way):
            if number == warm + under_way:
                start = time.perf_counter()
            if number >= under_way and transport.receive(SECONDS) is None:
                raise RuntimeError(f"no answer to tensor {number - under_way} within {SECONDS:g} s")
            if number < warm + count:
                transport.send(WorkerId(1), message(number, 1, (tensors[number % 2],)))
        seconds = time.perf_counter() - start
        other.join(SECONDS)
    return nbytes * count / seconds


def copy_rate(nbytes: int, count: int) -> float:
    """Bytes a second of a plain copy in one process, into memory that is there."""
    source, target = torch.rand(nbytes // 4), torch.zeros(nbytes // 4)
    start = time.perf_counter()
    for _ in range(count):
        target.copy_(source)
    return nbytes * count / (time.perf_counter() - start)


def main(words: Sequence[str] | None = None) -> int:
    """Measure in alternation, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=50)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/wire/real.json")
    arguments = parser.parse_args(words)
    torch.set_num_threads(1)
    nbytes, count = arguments.mb * 1_000_000, arguments.count
    rows: dict[str, list[float]] = {}
    for _ in range(arguments.rounds):
        rows.setdefault("plain copy", []).append(copy_rate(nbytes, count))
        for under_way in (1, 2):
            for name, is_shared in (("shared memory", True), ("ipc", False)):
                found = rate(is_shared, nbytes, count, under_way)
                rows.setdefault(f"{name}, {under_way} under way", []).append(found)
    table = Table("way", "GB/s", "least", "most", "of a copy", box=SIMPLE_HEAD)
    copied = statistics.median(rows["plain copy"])
    for name, rates in rows.items():
        middle = statistics.median(rates)
        figures = (f"{each / 1e9:.2f}" for each in (middle, min(rates), max(rates)))
        table.add_row(name, *figures, f"{middle / copied:.2f}")
    Console(highlight=False).print(table)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    record = {"environment": describe_environment(), "bytes": nbytes, "bytes_per_second": rows}
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")

"""What the access log costs: bytes and microseconds of a record beside the blocks it is about."""

from __future__ import annotations

import statistics
import time

import torch

import search_spaces
from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.store.access_log import AccessLogWriter, read_access_log
from naspipe.worker.stage_files import StageFiles

SHARE = 0.02
"""Of throughput, at most."""
MAX_BYTES = 64
RECORDS = 6000
RECORDS_PER_BLOCK = 3
"""Forward, backward and WRITE."""
TOKENS, LENGTH, WIDTH = 600, 20, 64
"""A batch of the scale tiny."""


class Silent:
    def report(self, kind, body):
        pass


def record(number):
    start_ns = 10**15 + number * 1_000_000
    kind = tuple(AccessKind)[number % 3]
    layer = LayerId(number % 2, number % 48, number % 72)
    return Access(layer, number // 48, kind, number // 99, 1, start_ns, start_ns + 999_999)


def log_records(path):
    """CPU nanoseconds and bytes per record, the hand-over to the operating system included."""
    logs = [AccessLogWriter(path / f"{stream}.msgpack") for stream in range(2)]
    files = StageFiles(logs, None, Silent())
    accesses = [record(number) for number in range(RECORDS)]
    start_ns = time.thread_time_ns()
    for access in accesses:
        files.access(access)
    for log in logs:
        log.close()
    took_ns = time.thread_time_ns() - start_ns
    found = [
        access for stream in range(2) for access in read_access_log(path / f"{stream}.msgpack")
    ]
    assert len(found) == RECORDS, "every record is on disk"
    size = sum((path / f"{stream}.msgpack").stat().st_size for stream in range(2))
    return took_ns / RECORDS, size / RECORDS


def block_ns():
    """CPU nanoseconds of a forward, backward and step; the mean of all encoder candidates."""
    space = search_spaces.build("nlp.c3", "tiny", {"vocabulary": 100, "padding": 1})
    x = torch.randn(TOKENS // LENGTH, LENGTH, WIDTH, requires_grad=True)
    mask = torch.zeros(TOKENS // LENGTH, LENGTH, dtype=torch.bool)
    times = []
    for factory in space.blocks[1].candidates:
        module = factory()
        optimizer = torch.optim.Adam(module.parameters())
        of_module = []
        for _ in range(4):
            start_ns = time.thread_time_ns()
            module(x, mask)[0].sum().backward()
            optimizer.step()
            of_module.append(time.thread_time_ns() - start_ns)
        times.append(min(of_module))
    return statistics.mean(times)


def test_the_log_costs_little(tmp_path, capsys):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        block = block_ns()
    finally:
        torch.set_num_threads(threads)
    measured = []
    for number in range(3):  # a collection of the whole process's garbage may fall into one
        (tmp_path / f"{number}").mkdir()
        measured.append(log_records(tmp_path / f"{number}"))
    record_ns, record_bytes = min(measured)
    share = RECORDS_PER_BLOCK * record_ns / block
    with capsys.disabled():
        print(
            f"\naccess log: {record_bytes:.0f} bytes and {record_ns / 1000:.1f} us per record, "
            f"{share:.2%} of a block of {block / 1e6:.2f} ms"
        )
    assert share <= SHARE
    assert record_bytes <= MAX_BYTES

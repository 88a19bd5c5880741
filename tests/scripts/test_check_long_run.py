"""scripts/check_long_run.py: what it reads of a process, and what it takes for growth."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from scripts.check_long_run import judge
from scripts.processes import Taken, allocator, children, taken

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc"
)
MIB = 2**20


def rows(*, growth_bytes=0, threads=3, files=20, steps=1000):
    """Samples of a process that grows by so many bytes over its warm part, from 100 MiB on."""
    return [
        (step / 10, step, Taken(
            100 * MIB + growth_bytes * max(0, step - 200) // (steps - 200), 50 * MIB,
            threads + (step > 900 and threads > 3), files + (step > 900 and files > 20),
        ))
        for step in range(0, steps, 10)
    ]  # fmt: skip


def test_what_stays_is_flat():
    found = judge(rows(), 200, 1000)
    assert found["is_flat"] and found["rss_growth_bytes"] == 0
    assert (found["threads"], found["descriptors"]) == ([3], [20])


def test_growth_before_the_warm_up_ends_does_not_count():
    samples = [(0, step, Taken(MIB * min(step, 300), 0, 3, 20)) for step in range(900)]
    assert judge(samples, 300, 900)["is_flat"]


def test_the_writing_of_layers_at_the_end_does_not_count():
    samples = [*rows(), (200, 1000, Taken(300 * MIB, 50 * MIB, 3, 25))]
    assert judge(samples, 200, 1000)["is_flat"]
    assert not judge(samples, 200, 1001)["is_flat"]


@pytest.mark.parametrize("more", [{"growth_bytes": 5 * MIB}, {"threads": 4}, {"files": 21}])
def test_what_grows_is_not(more):
    assert not judge(rows(**more), 200, 1000)["is_flat"]


def test_the_slope_is_by_subnets():
    found = judge(rows(growth_bytes=8 * MIB), 200, 1000)
    assert found["rss_growth_bytes_per_1000_subnets"] == pytest.approx(10 * MIB, rel=0.05)


def test_a_process_is_read_as_it_is():
    before = taken(os.getpid())
    ballast = mmap.mmap(-1, 30 * MIB)  # never memory that the process has already
    for page in range(0, len(ballast), mmap.PAGESIZE):
        ballast[page] = 1
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait)
    thread.start()
    with Path("/proc/self/maps").open():
        during = taken(os.getpid())
    gate.set()
    thread.join()
    assert during.rss_bytes - before.rss_bytes > 25 * MIB < len(ballast)
    assert during.threads == before.threads + 1
    assert during.descriptors == before.descriptors + 1


def test_children_come_and_go():
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.pid in children(os.getpid())
        assert taken(process.pid) is not None
        process.kill()
    assert process.pid not in children(os.getpid())
    assert taken(process.pid) is None


@pytest.mark.parametrize("name", ["libjemalloc.so.2", "libtcmalloc_minimal.so.4.5.10", "libm.so"])
def test_the_allocator_is_read_from_what_a_process_has_mapped(tmp_path, name):
    library = tmp_path / name
    library.write_bytes(b"mapped")
    code = (
        "import mmap, sys\n"
        "with open(sys.argv[1]) as file: held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "print(flush=True)\n"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, library], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env={**os.environ, "LD_PRELOAD": ""},
    ) as process:  # fmt: skip
        process.stdout.readline()
        assert allocator(process.pid) == (name if "malloc" in name else "libc")
        process.kill()
    assert allocator(process.pid) is None

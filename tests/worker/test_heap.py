"""Memory that is freed in a run is there for the next step, and the system's again afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from contextlib import nullcontext
import torch
from naspipe.machine.forking import kept_heap

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident():
    return int(open("/proc/self/statm").read().split()[1])

begin = resident()
with kept_heap() if sys.argv[1] == "kept" else nullcontext():
    for _ in range(3):  # glibc adapts a little by itself
        [torch.ones(1 << 20) for _ in range(8)]
    before = faults()
    for _ in range(20):
        [torch.ones(1 << 20) for _ in range(8)]
    print(faults() - before)
print(resident() - begin)
"""
PAGES = 20 * 8 * (4 << 20) // 4096
"""Of all tensors that the loop makes."""


def run(how, **variables):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], env={**os.environ, **variables},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_pages_are_not_cleared_in_each_step():
    faults, left = run("kept")
    assert faults < PAGES / 20
    assert left < PAGES / 20, "given back behind the run"


def test_what_a_user_asks_of_malloc_is_kept():
    faults, _ = run("kept", MALLOC_TRIM_THRESHOLD_="0", MALLOC_MMAP_THRESHOLD_="65536")
    assert faults > PAGES / 2

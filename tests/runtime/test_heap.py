"""Large blocks go back to the machine as soon as they are freed."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
from naspipe.runtime.heap import LARGE_BYTES, steady_heap

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

if sys.argv[1] == "steady":
    steady_heap()
for _ in range(3):  # glibc learns from the first ones
    torch.ones(8 * LARGE_BYTES // 4)
before = resident()
layers, large = [], []
for _ in range(20):
    large.append(torch.ones(2 * LARGE_BYTES // 4))
    layers.append([torch.ones(4000) for _ in range(20)])
large.clear()
print((resident() - before) // LARGE_BYTES)
"""


def kept_mib(how):
    words = [sys.executable, "-c", SCRIPT, how]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_small_objects_behind_large_blocks_keep_no_memory():
    assert kept_mib("steady") < kept_mib("as it is") / 2

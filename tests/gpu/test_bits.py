"""Whatever is trained on one GPU has the bits of the plain loop on that GPU."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.bits import GROUPS, cases

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]
ROOT = Path(__file__).parent.parent.parent


@functools.cache
def verdicts(group):
    command = [sys.executable, "-m", "tests.gpu.bits", group, "--device", "cuda"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-4000:]
    return {line["case"]: line["verdict"] for line in lines}


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group in GROUPS for name in cases(group, "cuda")]
)
def test_the_bits_of_the_plain_loop(group, name):
    assert verdicts(group)[name] == "IDENTICAL"

"""One, two and four stages on one GPU leave the bits of the plain loop on that GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.bits import cases

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def verdicts():
    command = [sys.executable, "-m", "tests.gpu.bits", "--device", "cuda"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-4000:]
    return {line["case"]: line["verdict"] for line in lines}


@pytest.mark.parametrize("name", sorted(cases()))
def test_the_bits_of_the_plain_loop(verdicts, name):
    assert verdicts[name] == "IDENTICAL"

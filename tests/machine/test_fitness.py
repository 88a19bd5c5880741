"""Launchers beside an accelerator: they compute nothing themselves, so that stages can."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from naspipe.machine.forking import may_compute_here
from tests import stand_in
from tests.accelerator import ACTS

ROOT = Path(__file__).parents[2]
SECONDS = 300


@pytest.mark.parametrize("act", ACTS)
def test_beside_an_accelerator(act, tmp_path):
    command = [sys.executable, "-m", "tests.accelerator", act, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.skipif(stand_in.is_wanted(), reason="this process has a stand-in")
def test_without_one_this_process_may_compute():
    assert may_compute_here()
    assert not may_compute_here("cuda")

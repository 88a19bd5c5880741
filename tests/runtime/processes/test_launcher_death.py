"""The stages of a run end with their launcher, also when it had no time to say so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from torch import nn
import naspipe
from tests.equivalence import spaces
naspipe.train(spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=20000, stages=2,
              run_dir=sys.argv[1])
"""


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find children")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_stages_end_with_their_launcher(tmp_path, how):
    environment = {**os.environ, "TMPDIR": str(tmp_path)} if len(str(tmp_path)) < 70 else None
    launcher = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run")],
        cwd=Path(__file__).parents[3], env=environment, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        logs = tmp_path / "run" / "losses.jsonl"
        wait_until(lambda: logs.exists() and logs.stat().st_size > 0, 60)
        stages = children(launcher.pid)
        assert len(stages) == 2
        launcher.send_signal(how)
        launcher.wait(10)
        wait_until(lambda: not any(map(is_running, stages)), 10)
    finally:
        launcher.kill()
        launcher.wait()

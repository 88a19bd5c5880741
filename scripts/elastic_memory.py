"""Resident memory of a student and of its teacher's process, at two steps of one run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.processes import children, taken

_ENOUGH = 1.2
"""Steps that are trained, over those that are looked at: at the last ones layers are written."""


def resident(place: Path, moments: Sequence[int]) -> dict[str, Any]:
    """Bytes of both processes when so many steps are done, of a student on one stage.

    Raises:
        RuntimeError: when the run ends before that.
    """
    teacher, run = place / "teacher", place / "run"
    cnn = ["train", "cnn", "--quiet", "--seed", "1", "--set", "data.batch_size=8"]
    _naspipe([*cnn, "--steps", "1", "--run-dir", str(teacher)]).wait()
    steps = str(round(moments[-1] * _ENOUGH))
    labels = ["--teacher", str(teacher), "--labels", "service", "--teachers", "1"]
    process = _naspipe([*cnn, "--steps", steps, "--run-dir", str(run), *labels])
    found: dict[str, list[int]] = {"student": [], "teacher": []}
    try:
        for moment in moments:
            while _steps(run) < moment:
                if process.poll() is not None:
                    raise RuntimeError(f"expected a run of {steps} steps, found {_steps(run)}")
                time.sleep(0.05)
            for who, pid in (("student", process.pid), ("teacher", _teacher(process.pid))):
                now = taken(pid)
                if now is None:
                    raise RuntimeError(f"expected a {who} at step {moment}, found none")
                found[who].append(now.rss_bytes)
    finally:
        process.terminate()
        process.wait()
    return {"steps": list(moments), "rss_bytes": found}


def _naspipe(words: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "naspipe", *words])


def _steps(run: Path) -> int:
    losses = run / "losses.jsonl"
    return losses.read_bytes().count(b"\n") if losses.exists() else 0


def _teacher(pid: int) -> int:
    """The only grandchild of a run on one stage: the pool's."""
    (found,) = [teacher for pool in children(pid) for teacher in children(pool)]
    return found

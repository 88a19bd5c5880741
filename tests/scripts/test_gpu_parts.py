"""The parts of the check on a GPU: their list, what the command says of them, and time limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.gpu.findings import watched
from scripts.gpu.parts import PARTS, PIECE_SECONDS, epilog, pieces
from tests.gpu.bits import GROUPS, ON_GPUS_ONLY, cases

ROOT = Path(__file__).parent.parent.parent


def check(*words: str) -> subprocess.CompletedProcess[str]:
    """By an interpreter that has nothing: neither says more than these need."""
    command = [sys.executable, "-I", "-S", str(ROOT / "scripts/gpu_check.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_every_part_takes_three_minutes_at_most_and_every_piece_below_ten():
    assert all(0 < part.seconds <= 180 for part in PARTS.values())
    assert [name for piece in pieces() for name in piece] == [*PARTS]
    for piece in pieces():
        assert sum(PARTS[name].seconds for name in piece) <= PIECE_SECONDS < 600


def test_every_group_of_cases_is_a_part():
    assert GROUPS.keys() <= PARTS.keys()
    for group in GROUPS:
        assert cases(group, "cuda").keys() - cases(group, "cpu").keys() <= ON_GPUS_ONLY


def test_the_page_has_the_same_table():
    page = (ROOT / "docs/gpus.md").read_text()
    for name, part in PARTS.items():
        assert f"| `{name}` | {part.checks} | {part.seconds} |" in page


def test_help_lists_parts_pieces_and_wheels():
    done = check("--help")
    assert done.returncode == 0, done.stderr
    assert epilog() in done.stdout
    for piece in pieces():
        assert f"--parts {' '.join(piece)}\n" in done.stdout
    assert "--make-wheels 3.12" in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--parts", "bots"), "invalid choice: 'bots'"),
        (("--factor", "0"), "--factor: expected a number above 0, found 0"),
        (("--device", "cpu"), "expected --dry-run with it"),
    ],
)
def test_bad_options(words, text):
    done = check(*words)
    assert done.returncode == 2
    assert text in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


PART = """
import subprocess, sys, time
from pathlib import Path
from scripts.gpu.findings import Findings
findings = Findings(Path(sys.argv[1]))
findings.put(is_good=True, cases=["first"])
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
findings.put(child=child.pid)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize(("sleeps", "is_cut_off"), [(60, True), (0, False)])
def test_a_part_that_is_cut_off_keeps_what_it_had_found(tmp_path, sleeps, is_cut_off):
    """And leaves no process behind."""
    command = [sys.executable, "-S", "-c", PART, str(tmp_path / "part.json"), str(sleeps)]
    start = time.monotonic()
    record = watched(command, tmp_path / "part.json", 2.5, ROOT, {})
    assert time.monotonic() - start < 10
    assert record["was_cut_off"] is is_cut_off and record["is_good"] is not is_cut_off
    assert record["cases"] == ["first"]
    assert json.loads((tmp_path / "part.json").read_text()) == record
    if is_cut_off:
        assert is_gone(record["child"])
    else:
        os.kill(record["child"], 9)
    assert [path.name for path in tmp_path.iterdir()] == ["part.json"]


def is_gone(pid: int) -> bool:
    """Nobody waits for it here: it may be a zombie for a while."""
    for _ in range(100):
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or ") Z " in status.read_text():
            return True
        time.sleep(0.02)
    return False


def test_a_part_that_writes_nothing_is_not_good(tmp_path):
    command = [sys.executable, "-S", "-c", "pass"]
    record = watched(command, tmp_path / "part.json", 5, ROOT, {})
    assert record == {
        "exit_status": 0, "was_cut_off": False, "took_seconds": record["took_seconds"],
        "is_good": False,
    }  # fmt: skip
